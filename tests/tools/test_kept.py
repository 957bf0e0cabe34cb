"""When a step's result is kept, and when it has to be gathered anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.jobs.command import Command, Ending, Finished
from mcp_server.runtime.steps import CARD, WHOLE_BYTES, StepCache, keep, key_of

BASE = Command(argv=("python", "-u", "main.py"), cwd=Path("/"), env={"A": "1"})


def step(job: Path, name: str, request: object = None, ending: Ending = "exit", wall_s: float = 1) -> Path:
    """A step's directory with its streams; with `ending`, one that has ended and is kept."""
    directory = job / name
    directory.mkdir(parents=True)
    if request is not None:
        (directory / "request.json").write_text(json.dumps(request))
    for stream in ("output", "stdout", "stderr"):
        (directory / f"{stream}.log").write_text(name)
    streams: dict[str, Any] = {s: directory / f"{s}.log" for s in ("output", "stdout", "stderr")}
    keep(key_of(BASE, directory), directory, Finished(ending, 0, None, wall_s, **streams))
    return directory


@pytest.mark.parametrize("size", [10, WHOLE_BYTES + 10])
def test_another_content_is_another_step(tmp_path: Path, size: int) -> None:
    """A file that the request names counts by its content, small or large."""
    file = tmp_path / "inputs.pt"
    keys = set()
    for byte in (b"a", b"b"):
        file.write_bytes(byte * size)
        directory = tmp_path / "job" / f"01-{byte.decode()}" / "x"
        directory.mkdir(parents=True)
        (directory / "request.json").write_text(json.dumps({"inputs": [str(file)]}))
        keys.add(key_of(BASE, directory))
    assert len(keys) == 2


def test_a_kept_step_is_used_once_and_brings_its_files(tmp_path: Path) -> None:
    """The second request for the same is a repeat, and has to be run; the new directory has the old files."""
    old = step(tmp_path, "01-run", {"x": 1})
    (old / "site").mkdir()
    (old / "site" / "saved.pt").write_text("tensor")
    kept = StepCache.read(tmp_path)
    assert kept.last == 1
    key, new = key_of(BASE, old), tmp_path / "02-run"
    new.mkdir()
    found = kept.take(key, BASE, new)
    assert found is not None and found.reused and found.output == new / "output.log"
    assert found.output.read_text() == "01-run" and (new / "site" / "saved.pt").read_text() == "tensor"
    assert not (new / CARD).exists() and kept.take(key, BASE, new) is None


@pytest.mark.parametrize(("limit_s", "used"), [(5, True), (60, False)])
def test_a_time_limit_says_nothing_of_a_longer_one(tmp_path: Path, limit_s: float, used: bool) -> None:
    """A step that reached its limit is kept for a limit as short, and run again under a longer one."""
    old = step(tmp_path, "01-run", ending="timeout", wall_s=5)
    found = StepCache.read(tmp_path).take(
        key_of(BASE, old), replace(BASE, timeout_s=limit_s), tmp_path / "02-run"
    )
    assert (found is not None) == used
