"""What every file of the worker keeps to, what it exchanges, and what registers a script's operators."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mcp_server.runtime.context import stream_events
from mcp_server.worker import events, protocol
from mcp_server.worker.imports import import_all, registrations
from mcp_server.worker.report import Report


@pytest.mark.parametrize("module", ["protocol", "events"])
def test_the_types_need_nothing_but_the_standard_library(module: str) -> None:
    """They are imported without site-packages, as on a server whose interpreter has no torch."""
    place = str(Path(protocol.__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {place!r}); import mcp_server.worker.{module}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


DIRECTORY = Path(protocol.__file__).parent
FILES = sorted([*DIRECTORY.glob("*.py"), *DIRECTORY.glob("capture/*.py")])

# Compiled into every interpreter that has torch, or looked for before use.
ALLOWED = frozenset({"torch", "triton"})


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of the top-level packages that a file imports absolutely."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_9_and_nothing_but_torch(path: Path) -> None:
    """Each file has the syntax of Python 3.9 and imports torch, the standard library or its siblings only."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert set(imported(tree)) <= ALLOWED | sys.stdlib_module_names
    future = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    assert future or path.name == "__init__.py"


SCRIPT = """
import os, sys
import torch
from torch.library import custom_op
SCALE = 3.0
LIMITS = {}
LIMITS["top"] = SCALE
x = torch.ones(4)
torch.manual_seed(0)

def bounded(x):
    y = x * LIMITS["top"]
    return y

@custom_op("taken_out::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return bounded(x)

@scale.register_fake
def _(x):
    return torch.empty_like(x)

class Model(torch.nn.Module):
    def forward(self, x):
        return scale(x)

model = Model().eval()
program = torch.export.export(model, (x,))
path = torch._inductor.aoti_compile_and_package(program)
open(sys.argv[0] + ".ran", "w")
"""


def lines_of(code: str) -> list[str]:
    """The statements that are taken of this code, each by its first line; or why there are none."""
    taken = registrations(code.encode(), "program.py")
    return [taken.refused] if taken.refused else [ast.unparse(n).split("\n")[0] for n in taken.statements]


TAKEN = [
    *("import torch", "from torch.library import custom_op", "SCALE = 3.0", "LIMITS = {}"),
    *("LIMITS['top'] = SCALE", "def bounded(x):", "@custom_op('taken_out::scale', mutates_args=())"),
    "@scale.register_fake",
]


def test_only_what_registers_is_taken_with_what_it_reads(tmp_path: Path) -> None:
    """Definitions, constants and changes of them that the operator reads; a local `x` is no global.

    The operator computes what the script's does, at the script's own lines; the program did not run.
    """
    assert lines_of(SCRIPT) == TAKEN
    script, report = tmp_path / "program.py", tmp_path / "report.jsonl"
    script.write_text(SCRIPT)
    import_all([f"{script}#operators"], Report(str(report)))
    assert torch.ops.taken_out.scale(torch.ones(2)).tolist() == [3.0, 3.0]
    (told,) = stream_events(report, events.OperatorsTaken)
    assert told.lines == [16, 20] and told.file == str(script)
    assert not list(tmp_path.glob("*.ran"))


LIBRARY = "import torch\nlib = torch.library.Library('n', 'DEF')\n"


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        ("import torch\nmodel = torch.nn.Linear(2, 2)\nprint(model(torch.ones(2)))", []),
        (
            LIBRARY + "lib.define('f(Tensor x) -> Tensor')\nx = lib.name",
            ["import torch", "lib = ", "lib.def"],
        ),
        ("import torch as t\nt.ops.load_library('a.so')", ["import torch as t", "t.ops.load_library"]),
        ("import numpy, torch\nimport my_operators\nrun = my_operators.run()", ["import num", "import my_"]),
        ("import sys\nsys.path.insert(0, 'ops')\nimport mine", ["import sys", "sys.path.ins", "import mine"]),
        ("import torch\nif torch.cuda.is_available():\n    torch.ops.load_library('a.so')", ["import", "if"]),
        ("import torch.library as l\nfor f in (1, 2):\n    l.define(f'n::f{f}', '()')", ["import", "for f"]),
        ("import torch\ntorch.library.opcheck(f, ())", []),
    ],
)
def test_forms_of_registering(code: str, taken: list[str]) -> None:
    """Libraries of operators, definitions in blocks, and imports that may register; no checks of them."""
    found = lines_of(code)
    assert len(found) == len(taken) and all(map(str.startswith, found, taken))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("torch._inductor.aoti_load_package('m.pt2')(2)", "calls torch._inductor.aoti_load_package"),
        ("argparse.ArgumentParser().parse_args().limit", "calls parse_args"),
        ("measured()", "measured calls subprocess.run"),
        ("(", "it cannot be read"),
    ],
)
def test_operators_that_need_the_program(made: str, reason: str) -> None:
    """An operator that reads what only the running program has is not taken, and it is said why."""
    code = f"""
import argparse, subprocess, torch
def measured(): return len(subprocess.run(["true"]).args)
LIMIT = {made}
@torch.library.custom_op("n::f", mutates_args=())
def f(x: torch.Tensor) -> torch.Tensor:
    return x[:LIMIT]
"""
    (found,) = lines_of(code)
    assert found.startswith(("line 4 would have to be run", "it cannot be read")) and reason in found
    (found,) = lines_of("x = 'a\0b'")
    assert found.startswith("it cannot be read")
