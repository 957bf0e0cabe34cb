"""What the hook tells of files that the program packages itself, and of the weights that it compiled."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
import torch

from mcp_server.logs.capture_journal import read_capture
from mcp_server.worker.capture.checks import Returned
from mcp_server.worker.capture.compiles import Compiles, state_of
from mcp_server.worker.capture.journal import CaptureStore, Journal
from mcp_server.worker.capture.memory import Managed


def compiles_in(directory: Path) -> Compiles:
    journal = Journal(str(directory))
    return Compiles(journal, CaptureStore(journal), Returned(), Managed())


def test_the_files_of_each_model_are_told(tmp_path: Path) -> None:
    """By the first file, which is what a compile is told to have written, at the program's line."""
    packagings = compiles_in(tmp_path)
    files = {"coast": ["/c/a.wrapper.cpp", "/c/a.wrapper.so"], "valley": "/c/b.so"}
    packagings.packaging(tmp_path / "all.pt2", files)
    packagings.packaging(str(tmp_path / "one.pt2"), ["/c/a.wrapper.cpp"])
    every, one = read_capture(tmp_path).packagings
    assert every.package == tmp_path / "all.pt2" and every.stack[0].file == __file__
    assert every.files == {"coast": Path("/c/a.wrapper.cpp"), "valley": Path("/c/b.so")}
    assert one.files == {"model": Path("/c/a.wrapper.cpp")}


@pytest.mark.parametrize(("archive", "inside"), [(BytesIO(), False), ("a.pt2", True)])
def test_what_is_no_packaging_of_the_programs_own(tmp_path: Path, archive: object, inside: bool) -> None:
    """A stream has no path, and a compile that packages what it made is told as a compile."""
    packagings = compiles_in(tmp_path)
    packagings.thread.depth = int(inside)
    packagings.packaging(archive, {"m": ["/c/a.wrapper.cpp"]})
    assert read_capture(tmp_path).packagings == []


def test_a_graph_module_has_weights_as_a_program_has() -> None:
    """`aot_compile` is given a module; anything else that is compiled has none."""
    module = torch.fx.symbolic_trace(torch.nn.Linear(3, 2))
    assert state_of(module).keys() == {"weight", "bias"} and state_of(None) == {}
