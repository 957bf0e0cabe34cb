"""Diagnoses under srun, and jobs that leave no process however they end."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.jobs.child import Command
from mcp_server.jobs.run import run
from mcp_server.jobs.supervisor import children_of
from tests.conftest import ROOT, Zoo
from tests.jobs.support import OF_EACH_RANK, all_dead, family, python, within
from tests.slurm.conftest import Cluster
from tests.support.command import output_of

pytestmark = pytest.mark.slurm


# Rank 1 has ids outside the table. Rank 0 continues until it is stopped.
PROGRAM = """
    import os, sys
    import torch
    from torch._inductor import aoti_load_package

    rank = int(os.environ["SLURM_PROCID"])
    model = aoti_load_package(sys.argv[1])
    print("rank", rank, "is here", flush=True)
    model(torch.full((4, 6), 7 + 90 * rank))
    while sys.argv[2] == "on":
        model(torch.full((4, 6), 7))
"""


def diagnosed(launcher: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The verdict on PROGRAM."""
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(PROGRAM))
    return answered(launcher, tmp_path, "diagnose", "--json", str(script), "--", *arguments)


def answered(launcher: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What the command line prints as JSON."""
    asked = {"AOTI_DEBUG_LAUNCHER": launcher, "AOTI_DEBUG_STATE": str(tmp_path / "state")}
    env = {**os.environ, **asked, "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    argv = [str(Path(sys.executable).with_name("aoti-debug")), *arguments]
    done = output_of(argv, cwd=ROOT, env=env, timeout=300)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "launcher, goes_on", [("srun -n 2", "off"), ("srun -N 2 -n 2 --kill-on-bad-exit", "on")]
)
def test_the_failing_rank(launcher: str, goes_on: str, cluster: Cluster, zoo: Zoo, tmp_path: Path) -> None:
    """The failing rank is named, its call is diagnosed, and its output is a file."""
    verdict = diagnosed(launcher, tmp_path, str(zoo("ranker")), goes_on)
    assert (verdict["category"], verdict["confidence"]) == ("index_out_of_bounds", "proven")
    assert verdict["summary"].startswith("Rank 1: Element [0, 0] of input 0 (args[0]) is 97")
    assert "rank 1 failed: Exited with exit code 1" in [evidence["fact"] for evidence in verdict["evidence"]]
    (log,) = [Path(kept["path"]) for kept in verdict["artifacts"] if "rank 1" in kept["what"]]
    assert "rank 1 is here" in log.read_text() and "index out of bounds" in log.read_text()
    assert log.with_name("0.log").read_text().splitlines()[0] == "rank 0 is here"
    assert cluster.queued() == 0


def test_a_launcher_that_starts_nothing(cluster: Cluster, zoo: Zoo, tmp_path: Path) -> None:
    """There is no fault for a program that did not run, and srun's reason is quoted."""
    verdict = diagnosed("srun -n 2 --partition=nowhere", tmp_path, str(zoo("ranker")), "off")
    assert verdict["outcome"] == "inconclusive"
    assert "Invalid partition name" in json.dumps(verdict["evidence"])


def test_rebuilt_once(cluster: Cluster, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under two ranks, only one finds the toolchain, compiles and runs, so the trace has one call."""
    monkeypatch.setenv("AOTI_DEBUG_CACHE", str(tmp_path / "cache"))
    specs = json.dumps([{"shape": [4, 6], "dtype": "int64", "low": 0, "high": 9}])
    options = ("--json", "-i", specs, "-e", "OMP_NUM_THREADS=1")
    traced = answered("srun -n 2", tmp_path, "trace-launches", str(zoo("ranker")), *options)
    assert traced["calls"] == 1 and not traced["failure"] and not traced["skipped"]
    assert len(traced["launches"]) == traced["total"] > 0


TWO_RANKS = ("srun", "-n", "2")
SOON_S = 20.0  # srun abandons its tasks at once, but the machine may be busy

Server = subprocess.Popen[bytes]


@contextmanager
def serving(directory: Path, *launcher: str) -> Iterator[Server]:
    argv = [sys.executable, "-m", "tests.jobs.support", str(directory), *launcher]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def of_both_ranks(directory: Path) -> list[int]:
    """The ids of two processes of each rank."""
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
    """Even tasks that ignore SIGTERM, and a process that left its session, are ended."""
    with serving(tmp_path, *TWO_RANKS) as server:
        pids = of_both_ranks(tmp_path)
        die(server)
        assert all_dead(pids, SOON_S)
        assert within(SOON_S, lambda: cluster.queued() == 0)


def test_srun_behind_a_shell(cluster: Cluster, tmp_path: Path) -> None:
    """srun is found anywhere below the job, and not only as its first process."""
    with serving(tmp_path, "sh", "-c", '"$@"; true', "sh", *TWO_RANKS) as server:
        pids = of_both_ranks(tmp_path)
        server.kill()
        assert all_dead(pids, SOON_S)
        assert within(SOON_S, lambda: cluster.queued() == 0)


def test_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    """A run over its limit is a timeout, and its tasks have ended when that is reported."""
    argv = (*TWO_RANKS, *python(OF_EACH_RANK, str(tmp_path / "pids")))
    done = anyio.run(run, Command(argv, tmp_path, timeout_s=6), tmp_path)
    assert done.ending == "timeout"
    assert all_dead(of_both_ranks(tmp_path), SOON_S)
    assert within(SOON_S, lambda: cluster.queued() == 0)
