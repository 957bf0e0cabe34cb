"""Reproductions that crash, hang and start processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mcp_server.worker.reduction.trials import Child, Ended, Limits, OutOfTime, in_parallel

SCRIPTS = {
    "raises": "print('phase: compiling', flush=True); raise ValueError('no such size')",
    "exits": "import sys; sys.exit(3)",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGABRT)",
    "hangs": "import time; time.sleep(60)",
}


def directory_of(tmp_path: Path, name: str, text: str) -> str:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "repro.py").write_text(text)
    return str(directory)


def limits(each_s: float, parallel: int = 1) -> Limits:
    return Limits(time.monotonic() + 60, each_s, parallel)


def finished(child: Child) -> Ended:
    while (ended := child.poll()) is None:
        time.sleep(0.01)
    return ended


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize(("name", "status"), [("raises", 1), ("exits", 3), ("dies", -6), ("hangs", None)])
def test_every_end_is_told(tmp_path: Path, name: str, status: int | None, fork: bool) -> None:
    """A script that raises, exits, dies or hangs ends with its status, forked or in a new interpreter."""
    ended = finished(Child(directory_of(tmp_path, name, SCRIPTS[name]), fork, limit_s=5 if status else 0.5))
    assert ended.status == status
    assert name != "raises" or (ended.phase, "no such size" in ended.text) == ("compiling", True)


def test_what_a_script_started_ends_with_it(tmp_path: Path) -> None:
    """A compiler that a killed script left behind is killed, too."""
    started = tmp_path / "pid"
    text = (
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(started)!r} + '.new', 'w').write(str(child.pid))\n"
        f"import os; os.rename({str(started)!r} + '.new', {str(started)!r}); time.sleep(60)\n"
    )
    child = Child(directory_of(tmp_path, "a", text), False, limit_s=60)
    while not started.exists():
        time.sleep(0.01)
    child.kill()
    pid = int(started.read_text())
    for _ in range(200):
        if not _alive(pid):
            break
        time.sleep(0.01)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_closing_ends_those_that_still_run(tmp_path: Path) -> None:
    """Once an answer is there, the other candidates are ended instead of waited for."""
    pid = tmp_path / "pid"
    slow = f"import os; open({str(pid)!r}, 'w').write(str(os.getpid())); {SCRIPTS['hangs']}"
    quick = f"import os, time\nwhile not os.path.exists({str(pid)!r}): time.sleep(0.01)\n{SCRIPTS['exits']}"
    paths = [directory_of(tmp_path, "quick", quick), directory_of(tmp_path, "slow", slow)]
    run = in_parallel(paths, limits(60, parallel=2), fork=False)
    number, ended = next(run)
    assert (number, ended.status) == (0, 3)
    run.close()
    assert not _alive(int(pid.read_text()))


def test_no_more_than_asked_run_at_once(tmp_path: Path) -> None:
    """With one place, scripts run one after another, in their order."""
    paths = [directory_of(tmp_path, name, SCRIPTS["exits"]) for name in ("a", "b", "c")]
    order = [number for number, _ in in_parallel(paths, limits(20), fork=False)]
    assert order == [0, 1, 2]


def test_two_that_end_together_are_both_reaped(tmp_path: Path) -> None:
    """Closing after the first of two that reached their limit at once is no error."""
    paths = [directory_of(tmp_path, name, SCRIPTS["hangs"]) for name in ("a", "b")]
    run = in_parallel(paths, limits(0.2, parallel=2), fork=False)
    assert next(run)[1].status is None
    run.close()


def test_the_clock_of_the_search_is_no_end_of_a_script(tmp_path: Path) -> None:
    """What runs when the time for all of them is over has neither failed nor passed; nothing starts later."""
    paths = [directory_of(tmp_path, name, SCRIPTS["hangs"]) for name in ("a", "b")]
    with pytest.raises(OutOfTime):
        next(in_parallel(paths, Limits(time.monotonic() + 0.3, 60, 2), fork=False))
    with pytest.raises(OutOfTime):
        next(in_parallel(paths, Limits(time.monotonic(), 60, 2), fork=False))
