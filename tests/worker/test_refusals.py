"""Requests and interpreters that the worker cannot serve: each a clear error."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.worker.report import Refused
from tests.conftest import ZooPackage
from tests.worker.support import here, saved, work


class NotTensors:
    """Needs pickle."""


def refusal(directory: Path, operation: str, request: dict[str, object], **options: object) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        work(directory, operation, request, **options)
    return caught.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.pt", "no such inputs file"),
        ("text.pt", "not written by torch.save"),
        ("object.pt", "pickle"),
        ("number.pt", "no tensors"),
        ("empty.pt", "not written by torch.save"),
        ("cut.pt", "cannot be read"),
        (".", "Is a directory"),
    ],
)
def test_bad_inputs_files(tmp_path: Path, name: str, words: str) -> None:
    """Files that are missing, cut, not torch's, in need of pickle or without tensors are refused."""
    (tmp_path / "text.pt").write_text("these are not tensors")
    (tmp_path / "empty.pt").write_bytes(b"")
    saved(tmp_path, "object.pt", [NotTensors()])
    whole = saved(tmp_path, "number.pt", 3)
    (tmp_path / "cut.pt").write_bytes(whole.read_bytes()[:100])
    with pytest.raises(Refused) as caught:
        here(tmp_path, "describe_inputs", {"inputs": tmp_path / name})
    assert words in caught.value.what and caught.value.value == str(tmp_path / name)


@pytest.mark.slow
def test_a_refusal_reaches_the_caller(tmp_path: Path) -> None:
    """What the worker refuses is raised with the offending value and what would be allowed."""
    problem = refusal(tmp_path, "describe_inputs", {"inputs": tmp_path / "missing.pt"})
    assert problem.what == "no such inputs file" and problem.value == str(tmp_path / "missing.pt")
    assert "tensors" in problem.allowed


@pytest.mark.slow
def test_a_package_is_no_exported_program_and_the_other_way_round(zoo: ZooPackage, tmp_path: Path) -> None:
    """A package given as an exported program is recognised; so is an archive that is neither."""
    with pytest.raises(Refused, match="an AOTInductor package"):
        here(tmp_path, "compile", {"exported": zoo("ranker"), "package_path": tmp_path / "m.pt2"})
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme", "nothing")
    with pytest.raises(Refused, match="another kind of archive"):
        here(tmp_path, "compile", {"exported": other, "package_path": tmp_path / "m.pt2"})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"shape": [8, 6], "dtype": "int65"}, "unknown dtype"),
        ({"shape": [8, 6], "dtype": "int64", "low": 5, "high": 1}, "low is greater"),
        ({"shape": [8, 6], "stride": [1]}, "stride does not fit"),
        ({"shape": [8, 6], "device": "cuda:99"}, "cannot put an input there"),
    ],
)
def test_bad_specs(tmp_path: Path, spec: dict[str, object], words: str) -> None:
    """Specs with an unknown dtype, a bad range, a bad stride or a missing device are refused."""
    with pytest.raises(Refused, match=words):
        here(tmp_path, "describe_inputs", {"inputs": [spec]})


def test_interpreters_that_cannot_work(tmp_path: Path) -> None:
    """No file, no executable, no Python: each names the file and says how to give a right one."""
    plain = tmp_path / "plain"
    plain.write_text("")
    for python, words in (
        (tmp_path / "nothing", "no such interpreter"),
        (plain, "not an executable"),
        (Path("/bin/ls"), "cannot run the worker"),
    ):
        problem = refusal(tmp_path, "probe", {}, python=python)
        assert (
            words in problem.what
            and problem.value == str(python)
            and "AOTI_DEBUG_PYTHON" in problem.next_call
        )


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    """A Python whose torch cannot be imported is named as that."""
    hidden = tmp_path / "torch.py"
    hidden.write_text("raise ImportError('no torch here')")
    problem = refusal(tmp_path, "probe", {}, env={"PYTHONPATH": str(tmp_path)})
    assert "torch cannot be imported (no torch here)" in problem.what and problem.value == sys.executable


@pytest.mark.slow
def test_files_of_the_user_are_not_shadowed(tmp_path: Path) -> None:
    """A user's module called like one of the worker's files is the one that is imported."""
    (tmp_path / "report.py").write_text(
        "import sys\nprint('mine', __file__)\nassert 'inputs' not in sys.modules\n"
    )
    inputs = saved(tmp_path, "x.pt", torch.zeros(2))
    (tmp_path / "ops.py").write_text("import report\n")
    package = tmp_path / "none.pt2"
    problem = refusal(tmp_path, "run", {"package": package, "inputs": inputs, "extra_imports": ["ops"]})
    assert problem.what == "no such package"
    (log,) = tmp_path.glob("*/*-run/stdout.log")
    assert log.read_text().startswith(f"mine {tmp_path}")
