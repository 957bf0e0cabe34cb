"""Models that were compiled to one path and packaged afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.causes import invalid_package
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.package.archive import open_package
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, phase, run
from tests.package.archives import changed
from tests.package.test_same_models import twice, twice_with_other_weights

FILE = "/c/a.wrapper.cpp"
OTHER = "/c/b.wrapper.cpp"
LINE = {"file": "/app/release.py", "line": 43, "code": "aot_compile(net, example)"}
CHECK = "\n".join(
    [
        "Traceback (most recent call last):",
        '  File "/app/release.py", line 66, in sign',
        '    raise RuntimeError("not released")',
        "RuntimeError: not released",
    ]
)


def compiled(n: int, digest: str, file: str = FILE) -> dict[str, Any]:
    return phase(n, how="aot_compile", package=file, digests={"w": digest}, stack=[LINE])


def packaged(n: int, package: str = "all.pt2", **files: str) -> dict[str, Any]:
    return phase(n, package=package, files=files)


def released(
    package: Path, *events: dict[str, Any], refused: bool = False, text: str = CHECK
) -> DiagnosisState:
    """A program that did this, called its model `model`, and then failed over a check of its own."""
    case = DiagnosisState(None)
    case.package = open_package(package, "model")
    case.runs["script"], case.runs["plain"] = run("script", text), run("plain")
    inputs = package  # any file that exists
    call = phase(21, number=7, load=1, thread=1, file=inputs)
    end = {**phase(22, calls=[7] if refused else []), "outcome": "failed"}
    case.capture = capture(
        compiles=[event for event in events if "how" in event],
        packagings=[event for event in events if "files" in event],
        loads=[phase(20, loader="L", package="all.pt2", options={"model_name": "model"})],
        calls=[call],
        ends=[end],
    )
    return case


@pytest.fixture
def same(zoo: ZooPackage, tmp_path: Path) -> Path:
    return changed(zoo("ranker"), tmp_path / "same.pt2", twice)


LOST = (compiled(1, "1"), compiled(2, "2"), packaged(3, model=FILE, coast=FILE))
KEPT = (compiled(1, "1"), packaged(2, "a.pt2", a=FILE))


@pytest.mark.parametrize(("refused", "sure"), [(True, "likely"), (False, "likely")])
def test_compiles_that_wrote_over_each_other(same: Path, refused: bool, sure: str) -> None:
    """The package is guilty at the line of the compile; that the check looked at a call of it proves it."""
    case = released(same, *LOST, refused=refused)
    (found,) = invalid_package.detect_overwritten(case)
    assert (found.category, found.guilty.name) == ("invalid_package", "all.pt2")
    assert found.guilty.model_locations[0].line == 43 and confidence(found, case) == sure


@pytest.mark.parametrize(
    "events",
    [
        (compiled(1, "1"), packaged(3, model=FILE, coast=FILE)),
        (compiled(1, "1"), compiled(2, "1"), packaged(3, model=FILE, coast=FILE)),
        (compiled(1, "1"), compiled(2, "2", OTHER), packaged(3, model=FILE, coast=OTHER)),
        (
            compiled(1, "1"),
            packaged(2, "a.pt2", a=FILE),
            compiled(3, "2"),
            packaged(4, model=FILE, coast=FILE),
        ),
        (compiled(1, "1"), compiled(2, "2"), packaged(3, model=FILE)),
    ],
    ids=["one compile", "equal weights", "own paths", "packaged in between", "one name"],
)
def test_names_that_share_a_model_on_purpose(same: Path, events: tuple[dict[str, Any], ...]) -> None:
    """Nothing was lost where no two different compiles wrote the path since it was last packaged."""
    assert list(invalid_package.detect_overwritten(released(same, *events))) == []


def test_models_that_differ_in_the_package(zoo: ZooPackage, tmp_path: Path) -> None:
    """The package itself must show it: files may have been copied in between."""
    differ = changed(zoo("ranker"), tmp_path / "differ.pt2", twice_with_other_weights)
    assert list(invalid_package.detect_overwritten(released(differ, *LOST))) == []


def test_a_program_that_fails_elsewhere(same: Path) -> None:
    """Without a check of its results nothing says that the models should differ."""
    elsewhere = released(same, *LOST, text="KeyError: 'price'")
    assert list(invalid_package.detect_overwritten(elsewhere)) == []
