"""A package that is no longer there, or no longer the same, when it is to be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.causes import invalid_package
from mcp_server.diagnosis.observe.static import OpenPackage
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.tools.context import Context
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, phase


def opened(package: Path, directory: Path, size: int) -> DiagnosisState:
    """A case after its package was opened, which had `size` bytes when the program loaded it."""
    case = DiagnosisState(None)
    case.call = CallSpec("replay", {"package": str(package)}, package)
    case.capture = capture(loads=[phase(2, loader="L", package=str(package), outcome="failed", bytes=size)])
    anyio.run(OpenPackage().act, case, Context(directory, Path("python")))
    return case


@pytest.mark.parametrize("left", [None, b"PK half"])
def test_a_package_that_the_program_took_away(tmp_path: Path, left: bytes | None) -> None:
    """It was whole when it was loaded, for all that is known: no claim is made, and nothing is replayed."""
    package = tmp_path / "large.pt2"
    if left is not None:
        package.write_bytes(left)
    case = opened(package, tmp_path, 4000)
    assert list(invalid_package.detect_loading(case)) == [] and not case.failed
    assert case.call is None and "had 4000 bytes when the program loaded it" in case.notes[0]


def test_a_package_that_was_not_there_when_it_was_loaded(tmp_path: Path) -> None:
    """A file of no bytes then is missing, which is the fault."""
    (found,) = invalid_package.detect_loading(opened(tmp_path / "large.pt2", tmp_path, 0))
    assert (found.category, found.guilty.value) == ("invalid_package", "missing_file")


def test_a_package_that_is_as_it_was(tmp_path: Path, zoo: ZooPackage) -> None:
    """It is read, and what is wrong with it counts."""
    package = Path(shutil.copy(zoo("ranker"), tmp_path))
    assert opened(package, tmp_path, package.stat().st_size).package is not None
    package.write_bytes(b"PK half")
    (found,) = invalid_package.detect_loading(opened(package, tmp_path, 7))
    assert found.category == "invalid_package"
