"""Which operators the compiler was at when it failed, and the program that a script was about to compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.worker.capture.compiles import stopped_at
from mcp_server.worker.loading import recapture
from mcp_server.worker.protocol import MadeBy
from mcp_server.worker.report import Refused, Report

STACK = '  File "/app/model.py", line 9, in forward\n    return codec(x)'


def graph() -> torch.fx.Graph:
    """Two operators, of which the second knows the line of its model."""
    made = torch.fx.Graph()
    first = made.call_function(torch.ops.aten.relu.default, (made.placeholder("x"),))
    made.call_function(torch.ops.aten.neg.default, (first,)).meta["stack_trace"] = STACK
    return made


class Lowering:
    """Works on one node after the other, and refuses the second."""

    def run_node(self, n: torch.fx.Node) -> None:
        if n.target is torch.ops.aten.neg.default:
            raise RuntimeError("Unsupported return type")

    def run(self, of: torch.fx.Graph) -> None:
        for n in of.nodes:
            self.run_node(n)


class Kernel:
    """As Inductor's IR, which knows the nodes that it was made of."""

    __module__ = "torch._inductor.ir"

    def __init__(self, origins: list[torch.fx.Node]) -> None:
        self.origins = origins

    def codegen(self) -> None:
        raise RuntimeError("Unsupported return type")


def told(work: Any, *args: Any) -> list[dict[str, str]]:
    try:
        work(*args)
    except RuntimeError as error:
        return stopped_at(error)
    raise AssertionError("it did not fail")


def test_the_node_that_was_being_lowered() -> None:
    """It is told with the lines of the model that made it, and those that went well are not."""
    assert told(Lowering().run, graph()) == [{"operator": "aten.neg.default", "stack": STACK}]


def test_the_nodes_behind_a_kernel_that_was_being_written() -> None:
    """Inputs are no operators; an error elsewhere was at none."""
    found = told(Kernel(list(graph().nodes)).codegen)
    assert [each["operator"] for each in found] == ["aten.relu.default", "aten.neg.default"]

    def link() -> None:
        raise RuntimeError("ld returned 1 exit status")

    assert told(link) == []


SCRIPT = """
import sys, torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x + float(sys.argv[1])

if __name__ == "__main__":
    program = torch.export.export(Model(), (torch.ones(3),))
    if "compile" in sys.argv:
        try:
            torch._inductor.aoti_compile_and_package(program)
        except Exception:
            pass
        open(sys.argv[0] + ".went-on", "w")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the script; what the worker changes of the process is put back."""
    monkeypatch.setattr("sys.argv", ["pytest"])
    monkeypatch.syspath_prepend(tmp_path)
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    return script


def test_the_program_of_a_script_is_taken(here: Path) -> None:
    """With the script's own arguments; what it would do after the compile is not done."""
    compile_before = torch._inductor.aoti_compile_and_package
    asked: MadeBy = {"script": str(here), "args": ["7", "compile"], "compile": 0}
    program = recapture(asked, Report(str(here.with_suffix(".jsonl"))))
    assert program.module()(torch.ones(3)).tolist() == [8.0, 8.0, 8.0]
    assert not here.with_name("program.py.went-on").exists()
    assert torch._inductor.aoti_compile_and_package is compile_before


def test_a_script_that_does_not_compile_is_refused(here: Path) -> None:
    """It says that the compile was not reached again."""
    with pytest.raises(Refused, match="did not reach"):
        recapture({"script": str(here), "args": ["7"], "compile": 0}, Report(str(here.with_suffix(".jsonl"))))
