"""A program is taken from the script that compiles it, and the script goes no further."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mcp_server.worker.loading import recapture
from mcp_server.worker.protocol import MadeBy
from mcp_server.worker.report import Refused, Report

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
