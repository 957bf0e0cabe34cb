"""However a job under srun ends, the tasks that slurmd started end too, and the nodes are given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from mcp_server.jobs.run import run
from mcp_server.jobs.supervisor import children_of
from mcp_server.jobs.types import Command
from tests.jobs.support import all_dead, family, python, within
from tests.slurm.cluster import Cluster
from tests.slurm.job_server import OF_EACH_RANK

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
TWO_RANKS = ("srun", "-n", "2")
SOON_S = 20.0  # srun gives its tasks up at once, and the machine may be busy

Server = subprocess.Popen[bytes]


@contextmanager
def serving(directory: Path, *launcher: str) -> Iterator[Server]:
    argv = [sys.executable, "-m", "tests.slurm.job_server", str(directory), *launcher]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def of_both_ranks(directory: Path) -> list[int]:
    """Two processes of each rank."""
    return [pid for rank in "01" for pid in family(directory / f"pids.{rank}")]


def end_of_input(server: Server) -> None:
    assert server.stdin is not None
    server.stdin.close()


def kill_supervisor(server: Server) -> None:
    (supervisor,) = children_of(server.pid)
    os.kill(supervisor, signal.SIGKILL)


def sends(number: signal.Signals) -> Callable[[Server], None]:
    return lambda server: server.send_signal(number)


@pytest.mark.parametrize(
    "die",
    [
        pytest.param(end_of_input, id="EOF"),
        pytest.param(sends(signal.SIGINT), id="SIGINT"),
        pytest.param(sends(signal.SIGTERM), id="SIGTERM"),
        pytest.param(sends(signal.SIGKILL), id="SIGKILL"),
        pytest.param(kill_supervisor, id="supervisor"),
    ],
)
def test_tasks_die_with_the_server(die: Callable[[Server], None], cluster: Cluster, tmp_path: Path) -> None:
    """Also tasks that are deaf to SIGTERM, and a process that left its session."""
    with serving(tmp_path, *TWO_RANKS) as server:
        pids = of_both_ranks(tmp_path)
        die(server)
        assert all_dead(pids, SOON_S)
        assert within(SOON_S, lambda: cluster.queued() == 0)


def test_srun_behind_a_shell(cluster: Cluster, tmp_path: Path) -> None:
    """It is found wherever it is below the job, not only where it is the job."""
    with serving(tmp_path, "sh", "-c", '"$@"; true', "sh", *TWO_RANKS) as server:
        pids = of_both_ranks(tmp_path)
        server.kill()
        assert all_dead(pids, SOON_S)
        assert within(SOON_S, lambda: cluster.queued() == 0)


def test_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    """A run that is over its time is a timeout, and its tasks are gone when it is told of."""
    argv = (*TWO_RANKS, *python(OF_EACH_RANK, str(tmp_path / "pids")))
    done = anyio.run(run, Command(argv, tmp_path, timeout_s=6), tmp_path)
    assert done.ending == "timeout"
    assert all_dead(of_both_ranks(tmp_path), SOON_S)
    assert within(SOON_S, lambda: cluster.queued() == 0)
