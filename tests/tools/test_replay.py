"""Captured loads and calls made again, and steps whose results are kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command, Finished
from mcp_server.runtime.steps import StepCache, keep, key_of
from mcp_server.tools.requests import own_module, plan_replay
from tests.diagnosis.support import capture, phase
from tests.worker.support import captured


@pytest.mark.slow
def test_nothing_to_replay(tmp_path: Path) -> None:
    """A program that never used AOTInductor cannot be replayed, and the error says so."""
    with pytest.raises(ProblemError, match="without a load or call"):
        plan_replay(captured(tmp_path, "print(1)"), None)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os\nif __name__ == '__main__':\n    os.abort()\n", True),
        ("if '__main__' == __name__: pass", True),
        ("def main():\n    if __name__ == '__main__':\n        pass\nmain()\n", False),
        ("print('at once')", False),
        ("this is no Python", False),
    ],
)
def test_which_scripts_may_be_imported(tmp_path: Path, code: str, expected: bool) -> None:
    """Only a file whose top level checks `__main__` is imported. Of others, only the operators are."""
    script = tmp_path / "program.py"
    script.write_text(code)
    argv = ["python", "-u", str(script), "x.pt"]
    (process,) = capture(processes=[{"pid": 1, "parent": 0, "argv": argv, "python": "3.11"}]).processes
    assert own_module(process) == (str(script) if expected else f"{script}#operators")


def load(**more: Any) -> dict[str, Any]:
    return phase(1, loader="AOTIModelPackageLoader", package="m.pt2", **more)


def call(**more: Any) -> dict[str, Any]:
    return phase(2, load=1, thread=1, file="i.pt", **more)


@pytest.mark.parametrize(
    ("options", "current", "made_with"),
    [
        ({}, None, {}),
        ({}, 0, {}),
        ({}, 1, {"device_index": 1}),
        ({"device_index": -1}, 1, {"device_index": 1}),
        ({"device_index": 2}, 1, {"device_index": 2}),
        ({"device_index": 0}, 1, {"device_index": 0}),
    ],
)
def test_a_load_that_took_the_current_device_names_it(
    options: dict[str, Any], current: int | None, made_with: dict[str, Any]
) -> None:
    """The worker's current device is the first one. A device that the program named stays."""
    seen = capture(loads=[load(options=options, current_device=current)])
    request = plan_replay(seen, seen.loads[0])
    assert request == {"package": "m.pt2", "steps": [], "extra_imports": [], **made_with}


@pytest.mark.parametrize("current", [None, 0, 1])
def test_a_call_is_made_on_the_device_of_its_thread(current: int | None) -> None:
    """Kernels of custom operators use the current device, wherever the package was loaded."""
    seen = capture(loads=[load(options={"device_index": 1})], calls=[call(current_device=current)])
    request = plan_replay(seen, seen.calls[0])
    assert request["device_index"] == 1
    assert request.get("current_device") == current


@pytest.mark.parametrize(
    ("outcome", "headroom", "limited"), [("failed", 4096, True), ("ok", 4096, False), ("failed", None, False)]
)
def test_only_a_failed_call_keeps_its_limit(outcome: str, headroom: int | None, limited: bool) -> None:
    """Our process needs more than the call, which must not fail because of that if it passed."""
    seen = capture(loads=[load()], calls=[call(outcome=outcome, headroom=headroom)])
    (step,) = plan_replay(seen, seen.calls[0])["steps"]
    assert ("headroom" in step) == limited


@pytest.mark.parametrize(("size", "kept"), [(256 << 10, True), (8 << 20, False), (None, False)])
def test_a_small_stack_is_replayed(size: int | None, kept: bool) -> None:
    """A call that did not return is made again with its stack size, if that is less than usual."""
    for outcome, limited in (("unfinished", kept), ("ok", False)):
        seen = capture(loads=[load()], calls=[call(outcome=outcome, stack_bytes=size)])
        (step,) = plan_replay(seen, seen.calls[0])["steps"]
        assert ("stack" in step) is limited


BASE = Command(argv=("python", "-u", "main.py"), cwd=Path("/"), env={"A": "1"})


def step(job: Path, name: str, request: object = None, ending: Any = "exit", wall_s: float = 1) -> Path:
    """Make a step's directory with its streams. With `ending`, the step has ended and is kept."""
    directory = job / name
    directory.mkdir(parents=True)
    if request is not None:
        (directory / "request.json").write_text(json.dumps(request))
    for stream in ("output", "stdout", "stderr"):
        (directory / f"{stream}.log").write_text(name)
    streams: dict[str, Any] = {s: directory / f"{s}.log" for s in ("output", "stdout", "stderr")}
    keep(key_of(BASE, directory), directory, Finished(ending, 0, None, wall_s, **streams))
    return directory


def test_a_kept_step_is_used_once_and_brings_its_files(tmp_path: Path) -> None:
    """A second request for the same step has to run. The new directory has the old files."""
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
    files = {"output.log", "stdout.log", "stderr.log", "request.json", "site"}
    assert {path.name for path in new.iterdir()} == files
    assert kept.take(key, BASE, new) is None


@pytest.mark.parametrize(("limit_s", "used"), [(5, True), (60, False)])
def test_a_time_limit_says_nothing_of_a_longer_one(tmp_path: Path, limit_s: float, used: bool) -> None:
    """A step that reached its limit is reused for the same limit, but not for a longer one."""
    old = step(tmp_path, "01-run", ending="timeout", wall_s=5)
    limited = replace(BASE, timeout_s=limit_s)
    found = StepCache.read(tmp_path).take(key_of(BASE, old), limited, tmp_path / "02-run")
    assert (found is not None) == used
