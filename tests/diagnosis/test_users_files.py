"""Packages that a script writes over are put back: they were the user's own build."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.observe.program import put_back
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.model import ScriptWorkload, Verdict
from mcp_server.runtime.context import Context
from tests.diagnosis.support import capture
from tests.served import served
from tests.zoo.names import nightly

PACKAGES = """import sys
from torch._inductor.package import package_aoti

for name in ("kept.pt2", "new.pt2"):
    package_aoti(name, {"model": ["generated.cpp"]})
sys.exit("then it fails")
"""


def of_script(folder: Path, in_place: bool) -> Verdict:
    script = folder / "serve.py"
    script.write_text(PACKAGES)
    (folder / "generated.cpp").write_text("// code")
    (folder / "kept.pt2").write_bytes(b"the user's own build")
    job = folder / "job"
    job.mkdir()
    context = Context(directory=job, python=Path(sys.executable))
    workload = ScriptWorkload(script=script, cwd=folder)
    return served(diagnose, context, workload, budget_s=60, in_place=in_place)


@pytest.mark.parametrize("in_place", [False, *nightly(True)])
def test_a_package_that_a_script_writes_over_is_put_back(tmp_path: Path, in_place: bool) -> None:
    """With its bytes and its times, and the verdict says so; `in_place` keeps what the script wrote."""
    found = of_script(tmp_path, in_place)
    same = (tmp_path / "kept.pt2").read_bytes() == b"the user's own build"
    assert same == (not in_place), found
    assert any("kept.pt2 was restored" in remark for remark in found.remarks) == (not in_place)
    assert any("wrote new.pt2, a new file" in remark for remark in found.remarks) == (not in_place)
    assert (tmp_path / "new.pt2").exists()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"serve.py", "generated.cpp", "kept.pt2", "new.pt2", "job"}


def test_what_cannot_be_put_back_is_told_with_its_copy(tmp_path: Path) -> None:
    """The copy is named, and a file too large to copy is told; an untouched file is not mentioned."""
    copy, same = tmp_path / "before", tmp_path / "same.pt2"
    copy.write_bytes(b"own")
    same.write_bytes(b"own")
    case = DiagnosisState(None)
    paths = {"gone": tmp_path / "no" / "a.pt2", "large": tmp_path / "b.pt2", "same": same}
    case.capture = capture(
        overwritings=[
            {"path": paths["gone"], "kept": copy},
            {"path": paths["large"], "notice": "larger than is copied"},
            {"path": paths["same"], "kept": copy},
        ]
    )
    gone, large = put_back(case)
    assert str(copy) in gone and "could not be restored" in gone
    assert large.startswith("b.pt2 was overwritten") and same.read_bytes() == b"own"
