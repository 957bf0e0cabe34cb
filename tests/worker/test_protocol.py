"""Rules for all files of the worker, its protocol, and the statements that register a script's operators."""

import ast
import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.runtime.context import stream_events
from mcp_server.worker import events, protocol
from mcp_server.worker import inputs as worker_inputs
from mcp_server.worker.encode import encode_output, pack, pack_leaves, restore
from mcp_server.worker.imports import import_all, registrations
from mcp_server.worker.report import Refused, Report
from tests.worker.support import here, saved
from tests.zoo.names import few


@pytest.mark.parametrize("module", ["protocol", "events"])
def test_the_types_need_nothing_but_the_standard_library(module: str) -> None:
    """They are imported without site-packages, as on a server without torch."""
    place = str(Path(protocol.__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {place!r}); import mcp_server.worker.{module}"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


DIRECTORY = Path(protocol.__file__).parent
FILES = sorted([*DIRECTORY.glob("*.py"), *DIRECTORY.glob("capture/*.py")])

# Part of any interpreter with torch, checked before use, or imported for the type checker.
ALLOWED = frozenset({"torch", "triton", "typing_extensions"})


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that a file imports absolutely."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_9_and_nothing_but_torch(path: Path) -> None:
    """Each file has the syntax of Python 3.9, and imports only torch, the standard library and siblings."""
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
    """The first lines of the statements that are taken, or why there are none."""
    taken = registrations(code.encode(), "program.py")
    return [taken.refused] if taken.refused else [ast.unparse(n).split("\n")[0] for n in taken.statements]


TAKEN = [
    *("import torch", "from torch.library import custom_op", "SCALE = 3.0", "LIMITS = {}"),
    *("LIMITS['top'] = SCALE", "def bounded(x):", "@custom_op('taken_out::scale', mutates_args=())"),
    "@scale.register_fake",
]


def test_only_what_registers_is_taken_with_what_it_reads(tmp_path: Path) -> None:
    """Definitions, constants, and changes to them that the operator reads are taken; local names are not.

    The operator computes the same at the script's lines. The program did not run.
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
    """Libraries, definitions in blocks, and imports that may register are taken, but not checks."""
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
    """An operator that reads what only the running program has is not taken, with the reason."""
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


# Tensors in files and in reports.

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int8, torch.bool]


def described(directory: Path, request: dict[str, object]) -> Any:
    (found,) = here(directory, "describe_inputs", request)
    assert found.event == "inputs"
    return found


def through_a_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Make a view into a larger storage: sliced, stepped, permuted, expanded."""
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    base = torch.arange(4 * 3 * max(1, torch.Size(shape).numel())).to(draw(st.sampled_from(DTYPES)))
    whole = base[draw(st.integers(0, 7)) :][: torch.Size(shape).numel()].reshape(shape)
    steps = tuple(slice(None, None, draw(st.integers(1, 3))) for _ in shape)
    view = whole[steps].permute(draw(st.permutations(range(len(shape)))))
    return view.unsqueeze(0).expand(2, *view.shape) if draw(st.booleans()) else view


@settings(max_examples=few(80), deadline=None)
@given(views(), st.sampled_from(["whole", "cut"]))
def test_layout_survives(tensor: torch.Tensor, how: str) -> None:
    """Shape, stride and values survive, whether whole storages or only touched spans are kept."""
    whole = tensor.untyped_storage().nbytes()
    spare = torch.empty(whole + 1024, dtype=torch.uint8)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    tight = max(span, 0) * tensor.element_size()
    leaves = [tensor] if how == "whole" or tight >= whole else [tensor, spare[:0]]
    cap = whole if len(leaves) == 1 else max(tight, 1)
    back = through_a_file(pack_leaves(leaves, cap))[0]
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(back, tensor)
    item = tensor.element_size()
    assert (back.storage_offset() - tensor.storage_offset()) * item % 64 == 0


def test_the_tree_and_sharing_survive() -> None:
    """Built-in structures are restored, with views that share storage. Of others, the leaves are."""
    base = torch.arange(10.0)
    args, kwargs = ({"b": base[2:5], "a": [base[4:], 3]},), {"flag": True}
    leaves, tree = restore(through_a_file(pack(args, kwargs, 1 << 20)))
    assert tree is not None and tree[1] == {"flag": True}
    assert list(tree[0][0]) == ["b", "a"] and tree[0][0]["a"][1] == 3 and len(leaves) == 4
    leaves[0][2] = 77
    assert leaves[1][0] == 77
    assert restore(through_a_file(pack((object(), base), {}, 1 << 20)))[1] is None


def test_every_leaf_of_a_tree_has_its_facts(tmp_path: Path) -> None:
    """Tensors have paths, layouts, ranges and NaN counts; other leaves have their value."""
    base = torch.arange(12.0).reshape(3, 4)
    base[0, 0] = float("nan")
    tree = {"args": [base.t(), {"ids": torch.tensor([3, -5])}, 7], "kwargs": {"mask": base[1:]}}
    inputs = described(tmp_path, {"inputs": saved(tmp_path, "tree.pt", tree)})
    first, ids, number, mask = inputs.leaves
    assert first.stride == [1, 4] and not first.contiguous and first.nan == 1
    assert (ids.path or "").endswith("['ids']") and (ids.min, ids.max, ids.dtype) == (-5, 3, "int64")
    assert number.kind == "int" and number.value == "7"
    assert mask.storage_offset == 4 and (mask.path or "").startswith("[1]['mask']")


def test_a_file_from_a_gpu_is_described_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved device is described on any machine. Loading the file says why it cannot."""
    if torch.cuda.is_available():
        pytest.skip("the second half needs a machine without CUDA")
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
    file = saved(tmp_path, "gpu.pt", [torch.ones(3), torch.zeros(2)])
    inputs = described(tmp_path, {"inputs": file})
    assert [leaf.device for leaf in inputs.leaves] == ["cuda:1", "cuda:1"]
    assert inputs.leaves[0].mean == 1
    with pytest.raises(Refused, match="a device that is not available here"):
        worker_inputs.load_file(str(file))


def test_made_up_inputs_keep_to_their_specs(tmp_path: Path) -> None:
    """Shape, dtype, stride and bounds hold, integers include the upper bound, and values repeat."""
    specs = [
        {"shape": [50, 4], "dtype": "int64", "low": 3, "high": 5},
        {"shape": [4, 3], "dtype": "float16", "low": -1, "high": 1, "stride": [1, 8]},
        {"shape": [0, 2], "dtype": "bool"},
        {"shape": [5, 3], "dtype": "float32", "stride": [0, 1]},
    ]
    runs = [described(tmp_path, {"inputs": specs}) for _ in range(2)]
    ids, strided, empty, shared = runs[0].leaves
    assert (ids.min, ids.max) == (3, 5) and ids.shape == [50, 4]
    assert strided.stride == [1, 8]
    assert strided.min is not None and strided.max is not None and -1 <= strided.min < strided.max <= 1
    assert empty.shape == [0, 2] and shared.stride == [0, 1]
    sums = [[leaf.checksum for leaf in run.leaves] for run in runs]
    assert sums[0] == sums[1]


HALVES = [400.0] * 100


@pytest.mark.parametrize(
    ("values", "dtype", "nan", "inf"),
    [
        pytest.param([1.0, -2.0], torch.float32, 0, 0, id="finite"),
        pytest.param([math.nan, 1.0], torch.float32, 1, 0, id="nan"),
        pytest.param([math.inf, -math.inf, 1.0], torch.float32, 0, 2, id="infinities that cancel"),
        pytest.param([3e38, 3e38], torch.float32, 0, 0, id="a sum that overflows"),
        pytest.param(HALVES, torch.float16, 0, 0, id="large halves"),
        pytest.param(HALVES, torch.bfloat16, 0, 0, id="large short floats"),
        pytest.param(HALVES, torch.complex64, 0, 0, id="complex"),
        pytest.param(HALVES, torch.float8_e4m3fn, 0, 0, id="small floats"),
    ],
)
def test_counts_of_outputs(values: list[float], dtype: torch.dtype, nan: int, inf: int) -> None:
    """If the sum is not finite, elements are counted one by one."""
    told = encode_output(torch.tensor(values).to(dtype), "", True)
    assert (json.loads(told.text)["nan"], json.loads(told.text)["inf"]) == (nan, inf)
    assert told.odd is bool(nan or inf)
