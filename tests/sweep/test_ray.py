"""A sweep on a real Ray cluster of two nodes, one of which dies while a case runs on it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.sweep import Cluster, Results, sweep
from tests.sweep.support import killer, plan

pytestmark = pytest.mark.ray


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without processors, so that cases run on the two nodes beside it."""
    ray = pytest.importorskip("ray")
    utils = pytest.importorskip("ray.cluster_utils")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    made = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_two_nodes_and_a_killed_worker(cluster: Any, tmp_path: Path) -> None:
    """Cases run on both nodes, and the one whose process was killed is tried again."""
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    (tmp_path / "index.log").write_text("RuntimeError: index out of bounds: 0 <= tmp2 < 32L\n")
    text = f"""
        cases:
          - {{name: one, log: index.log, gpus: 0}}
          - {{name: two, log: index.log, gpus: 0}}
          - {{script: {killer(tmp_path)}, gpus: 0, timeout_s: 60}}
    """
    found = anyio.run(
        lambda: sweep(plan(tmp_path, text), Results(tmp_path / "out"), lambda: Cluster(cluster.address))
    )
    assert [case.ended for case in found.cases] == ["verdict"] * 3
    assert [attempt.ended for attempt in found.cases[2].attempts] == ["lost", "verdict"]


SLEEPER = """
import os, time
from pathlib import Path
Path(__file__).with_suffix(".pid").write_text(f"{os.getpid()}")
time.sleep(8)
"""


def test_a_node_that_dies_loses_no_case(cluster: Any, tmp_path: Path) -> None:
    """The case goes to the node that is left, and the report tells of the loss."""
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    text = f"cases: [{{script: {script}, gpus: 0, timeout_s: 60}}]"
    executor = Cluster(cluster.address)

    async def swept() -> Any:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, _end, cluster, nodes, script.with_suffix(".pid"))
            return await sweep(plan(tmp_path, text), Results(tmp_path / "out"), lambda: executor)

    (case,) = anyio.run(swept).cases
    assert [attempt.ended for attempt in case.attempts] == ["lost", "verdict"]
    assert case.attempts[0].where == "the cluster" and case.attempts[0].why


def _end(cluster: Any, nodes: list[Any], pid_file: Path) -> None:
    """End the node on which the program runs."""
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.2)
    above = set(_ancestors(int(pid_file.read_text())))
    doomed = next(node for node in nodes if node.all_processes["raylet"][0].process.pid in above)
    cluster.remove_node(doomed, allow_graceful=False)


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
