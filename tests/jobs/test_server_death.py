"""However the server dies, nothing of its jobs lives a second later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcp_server.jobs.supervisor import children_of
from tests.jobs.support import all_dead, family

ROOT = Path(__file__).resolve().parents[2]

Server = subprocess.Popen[bytes]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    argv = [sys.executable, "-m", "tests.jobs.small_server", str(tmp_path)]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE)
    with process:
        yield process
        process.kill()


def end_of_input(server: Server) -> None:
    assert server.stdin is not None
    server.stdin.close()


def sends(number: signal.Signals) -> Callable[[Server], None]:
    return lambda server: server.send_signal(number)


@pytest.mark.parametrize(
    ("die", "status"),
    [
        pytest.param(end_of_input, 0, id="EOF"),
        pytest.param(sends(signal.SIGINT), 130, id="SIGINT"),
        pytest.param(sends(signal.SIGTERM), 143, id="SIGTERM"),
        pytest.param(sends(signal.SIGKILL), -9, id="SIGKILL"),
    ],
)
def test_job_dies_with_the_server(
    server: Server, die: Callable[[Server], None], status: int, tmp_path: Path
) -> None:
    """The job and its grandchild in another session, both deaf to SIGTERM, are dead within a second."""
    pids = family(tmp_path / "pids")
    die(server)
    assert all_dead(pids, 1.0)
    assert server.wait(5) == status


def test_supervisor_leaves_with_the_job(server: Server, tmp_path: Path) -> None:
    """The supervisor itself does not outlive a killed server."""
    pids = [*family(tmp_path / "pids"), *children_of(server.pid)]
    assert len(pids) == 3
    server.kill()
    assert all_dead(pids, 1.0)


def test_killed_supervisor_takes_the_program_along(server: Server, tmp_path: Path) -> None:
    """Even when the server cannot look after it, the program dies with its supervisor."""
    program, grandchild = family(tmp_path / "pids")
    (supervisor,) = children_of(server.pid)
    server.send_signal(signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    try:
        assert all_dead([program], 1.0)
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_killed_supervisor_leaves_nothing(server: Server, tmp_path: Path) -> None:
    """When the supervisor is killed the server finds the job's processes by their mark, in any session."""
    pids = family(tmp_path / "pids")
    (supervisor,) = children_of(server.pid)
    os.kill(supervisor, signal.SIGKILL)
    assert all_dead(pids, 1.0)
    assert server.poll() is None
