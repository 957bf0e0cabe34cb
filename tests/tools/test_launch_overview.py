"""What a reader gets of many launches, which are read one after another and let go."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mcp_server.package.archive import open_package
from mcp_server.package.view import PackageView
from mcp_server.runtime.context import Context, decode, read_events, stream_events
from mcp_server.tools.kernel_io import Choice, LaunchValues, last_of, overview
from mcp_server.tools.probe_backend import OPEN, read_launches
from mcp_server.worker.events import Argument, Phase
from mcp_server.worker.report import Report
from tests.conftest import ZooPackage

pytestmark = pytest.mark.slow

BAD = {"index": [3], "value": "nan", "count": 1}


@pytest.fixture(scope="module")
def model(zoo: ZooPackage) -> PackageView:
    package = open_package(zoo("logarithm"))
    return PackageView(package)


def event(sequence: int, phase: str, run: int = 0, **more: Any) -> dict[str, Any]:
    where = {"launch": 0, "sequence": sequence, "run": run, "kernel": "k"}
    seen = {"name": "buf0", "parameter": "x", "role": "written", "dtype": "float32", "shape": [4], "nan": 0}
    return {"event": "argument", "phase": phase, **where, **seen, **more}


def read(tmp_path: Path, model: PackageView, lines: Iterator[dict[str, Any]]) -> Iterator[LaunchValues]:
    seen = (cast(Argument, decode(line)) for line in lines)
    return read_launches(Context(tmp_path, Path(sys.executable)), seen, model, ())


def test_launches_are_let_go(tmp_path: Path, model: PackageView) -> None:
    """Of 600 launches no more are in memory at a time than are shown and may still be open."""
    seen: list[weakref.ref[LaunchValues]] = []
    most = 0

    def watched() -> Iterator[LaunchValues]:
        nonlocal most
        for launch in read(tmp_path, model, (event(n, "after") for n in range(600))):
            seen.append(weakref.ref(launch))
            most = max(most, sum(one() is not None for one in seen))
            yield launch

    found = overview(watched(), model, Choice(), tmp_path, 10)
    assert (found.count, len(found.shown)) == (600, 10)
    assert most <= 10 + OPEN
    assert len(json.loads(found.json_file.read_text())) == 600


def test_bad_launches_come_first(tmp_path: Path, model: PackageView) -> None:
    """A bad value late in the call is found, shown before the good launches, and stands in both files."""
    events = [event(n, "after", non_finite=BAD if n in (700, 800) else None) for n in range(900)]
    found = overview(read(tmp_path, model, iter(events)), model, Choice(), tmp_path, 3)
    assert [launch.sequence for launch in found.shown] == [700, 800, 0]
    assert found.first_bad is not None and found.last is not None
    assert (found.first_bad.element.index, found.last.sequence) == ([3], 899)
    assert found.table.read_text().count("  !  buf0") == 2
    assert json.loads(found.json_file.read_text())[700]["arguments"][0]["non_finite"] == BAD


def test_launches_of_two_runs_may_be_mixed(tmp_path: Path, model: PackageView) -> None:
    """Runs side by side write into one report: each launch gets its own arguments."""
    pairs = [(run, phase) for phase in ("before", "after") for run in (1, 2)]
    events = [event(n, phase, run) for n in range(200) for run, phase in pairs]
    launches = list(read(tmp_path, model, iter(events)))
    assert [launch.sequence for launch in launches] == [n for n in range(200) for _ in (1, 2)]
    assert all([a.when for a in launch.arguments] == ["before", "after"] for launch in launches)


def test_a_report_is_read_in_parts(tmp_path: Path) -> None:
    """Events that are streamed are left out of the others; a line that a crash cut is none."""
    path = tmp_path / "report.jsonl"
    report = Report(str(path))
    for name in ("loading", "argument", "argument", "finished"):
        report.event(Argument(launch=1) if name == "argument" else Phase(name))
    with path.open("a") as file:
        file.write('{"event": "argument", "n"')
    assert [found.event for found in read_events(path, (Argument,))] == ["loading", "finished"]
    assert [found.launch for found in stream_events(path, Argument)] == [1, 1]
    assert list(stream_events(tmp_path / "none.jsonl", Argument)) == []


def test_the_last_launch_is_known(tmp_path: Path, model: PackageView) -> None:
    """The one that began last; none where no launch began."""
    last = last_of(read(tmp_path, model, (event(n, "after") for n in range(3))))
    assert last is not None and last.sequence == 2
    assert last_of(()) is None
