"""A kernel that fails while it is compiled is named by the file that its error names."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.actions.generated import ReadGeneratedKernel
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors import generated
from mcp_server.steps.context import Context
from tests.diagnosis.support import run

SOURCE = (
    "import triton\n@triton.jit\ndef triton_poi_fused_index_2(in_ptr0):\n    tl.device_assert(tmp17 < ks0)\n"
)
NAME = f"c{'a' * 50}.py"
SAID = (
    "{}:4: unknown: block: [0,0,0], thread: [3,0,0] Assertion `index out of bounds: 0 <= tmp17 < ks0` failed."
)


def case_of(path: Path) -> Case:
    """A program that failed at a kernel in that file."""
    case = Case(None)
    case.runs["script"] = run("script", SAID.format(path))
    return case


def read(case: Case, directory: Path) -> float:
    action = ReadGeneratedKernel()
    anyio.run(action.act, case, Context(directory, Path("python")))
    return action.gain(case, ())


def test_the_kernel_and_its_line(tmp_path: Path) -> None:
    """The verdict has the kernel's name and the text of the assertion's line."""
    path = tmp_path / NAME
    path.write_text(SOURCE)
    case = case_of(path)
    assert read(case, tmp_path) == 1.0
    (found,) = generated.detect(case)
    assert (found.guilty.kind, found.guilty.name) == ("kernel", "triton_poi_fused_index_2")
    assert any("device_assert" in evidence.fact for evidence in found.evidence)


@pytest.mark.parametrize(
    "name, text", [("secret.py", SOURCE), (NAME, "PASSWORD = 1\n" * 9), (NAME, ""), (NAME, None)]
)
def test_no_other_file_is_read(tmp_path: Path, name: str, text: str | None) -> None:
    """A path that a program prints is no leave to quote what stands there."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    case = case_of(path)
    read(case, tmp_path)
    assert case.generated is None and list(generated.detect(case)) == []
