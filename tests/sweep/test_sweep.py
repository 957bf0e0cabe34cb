"""Sweeps: the file of cases, kept verdicts, lost cases, and a Ray cluster that loses a node."""

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.cli.app import exit_of
from mcp_server.cli.main import Exit
from mcp_server.cli.main import run as main_run
from mcp_server.errors import ProblemError
from mcp_server.sweep import (
    Cluster,
    Local,
    Results,
    Sweep,
    SweepCase,
    as_markdown,
    local_gpus,
    read_plan,
    sweep,
)

# On its first run, it kills the process of the sweep that diagnoses it.
KILLER = """
    import os, signal
    from pathlib import Path
    marker = Path(__file__).with_suffix(".done")
    if not marker.exists():
        marker.touch()
        pid = os.getppid()
        while b"mcp_server.sweep" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
"""


def plan(directory: Path, text: str) -> tuple[SweepCase, ...]:
    """The cases of a file with this text."""
    path = directory / "cases.yaml"
    path.write_text(textwrap.dedent(text))
    return read_plan(path)


def killer(directory: Path) -> Path:
    """Write a program that kills its diagnosis once, and then does nothing."""
    script = directory / "killer.py"
    script.write_text(textwrap.dedent(KILLER))
    return script


def swept(directory: Path, text: str, retries: int = 1) -> Sweep:
    out, here = Results(directory / "out"), lambda: Local(2)
    return anyio.run(lambda: sweep(plan(directory, text), out, here, retries=retries))


LOGS = """
    cases:
      - {name: index, log: index.log}
      - {name: gone, package: missing.pt2}
"""


def test_verdicts_are_taken_up_again(tmp_path: Path) -> None:
    """A second sweep keeps the verdict of the first, and tries the rejected case again."""
    (tmp_path / "index.log").write_text("RuntimeError: index out of bounds: 0 <= tmp2 < 32L\n")
    first, second = swept(tmp_path, LOGS), swept(tmp_path, LOGS)
    assert [case.ended for case in first.cases] == ["verdict", "refused"]
    assert (first.reused, second.reused) == (0, 1)
    assert second.cases[0] == first.cases[0]
    assert "no such" in second.cases[1].attempts[0].why
    assert exit_of(second) == Exit.PROBLEM


@pytest.mark.slow
def test_a_lost_case_is_tried_again_and_told(tmp_path: Path) -> None:
    """If the diagnosing process dies, one attempt is lost, and the report says why."""
    text = f"cases: [{{script: {killer(tmp_path)}, gpus: 0, timeout_s: 60}}]"
    found = swept(tmp_path, text)
    (case,) = found.cases
    assert [attempt.ended for attempt in case.attempts] == ["lost", "verdict"]
    assert "SIGKILL" in case.attempts[0].why and "SIGKILL" in as_markdown(found)


@pytest.mark.slow
def test_without_retries_a_lost_case_stays_lost(tmp_path: Path) -> None:
    """Without retries a lost case has no verdict, and the next sweep tries it."""
    text = f"cases: [{{script: {killer(tmp_path)}, gpus: 0, timeout_s: 60}}]"
    assert swept(tmp_path, text, retries=0).cases[0].ended == "lost"
    assert swept(tmp_path, text, retries=0).cases[0].ended == "verdict"


def test_gpus_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Visible GPUs are used, or else the device files in numerical order."""
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local_gpus(tmp_path) == ["2", "10"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert local_gpus(tmp_path) == ["3", "GPU-5"]


def test_defaults_and_relative_paths(tmp_path: Path) -> None:
    """Defaults apply to every case, and paths are relative to the file."""
    cases = "[{package: a.pt2, gpus: 0, inputs: [{shape: [2], dtype: float32}]}]"
    (case,) = plan(tmp_path, f"defaults: {{budget_s: 9}}\ncases: {cases}")
    assert (case.name, case.gpus, case.arguments["budget_s"]) == ("a", 0, 9)
    assert case.arguments["package"] == str(tmp_path / "a.pt2")
    assert case.arguments["inputs"] == [{"shape": [2], "dtype": "float32"}]


def test_a_pattern_makes_a_case_of_each_file(tmp_path: Path) -> None:
    """Cases are named after the files that match, below the given name if there is one."""
    for name in ("b", "a"):
        (tmp_path / f"{name}.pt").touch()
    cases = plan(tmp_path, "cases: [{name: m, package: m.pt2, inputs: '*.pt'}]")
    assert [case.name for case in cases] == ["m-a", "m-b"]
    assert [Path(case.arguments["inputs"]).name for case in cases] == ["a.pt", "b.pt"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("cases: []", "no cases"),
        ("- a", "not a mapping"),
        ("cases: [{package: a.pt2, bugdet_s: 1}]", "case 0: bugdet_s"),
        ("cases: [{package: a.pt2, budget_s: -1}]", "case 0: budget_s"),
        ("cases: [{package: a.pt2, gpus: many}]", "gpus must be a number"),
        ("cases: [{package: a.pt2}, {package: b/a.pt2}]", "two cases have one name"),
        ("cases: [{package: '*.pt2', inputs: '*.pt'}]", "more than one pattern"),
        ("cases: [{package: '*.pt2'}]", "no file matches"),
        ("cases: [{name: ../x, package: a.pt2}]", "no name for a file"),
        ("cases: [{package: a.pt2", "cannot be read"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """The error names the number of the case and what is allowed."""
    with pytest.raises(ProblemError) as refused:
        plan(tmp_path, text)
    assert said in str(refused.value) and (refused.value.allowed or "no file" in said)


@pytest.mark.ray
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
    out, nodes = Results(tmp_path / "out"), lambda: Cluster(cluster.address)
    found = anyio.run(lambda: sweep(plan(tmp_path, text), out, nodes))
    assert [case.ended for case in found.cases] == ["verdict"] * 3
    assert [attempt.ended for attempt in found.cases[2].attempts] == ["lost", "verdict"]


SLEEPER = """
import os, time
from pathlib import Path
Path(__file__).with_suffix(".pid").write_text(f"{os.getpid()}")
time.sleep(8)
"""


@pytest.mark.ray
def test_a_node_that_dies_loses_no_case(cluster: Any, tmp_path: Path) -> None:
    """The case moves to the remaining node, and the report says so."""
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
    """Remove the node on which the program runs."""
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.2)
    above = set(_ancestors(int(pid_file.read_text())))
    doomed = next(node for node in nodes if node.all_processes["raylet"][0].process.pid in above)
    cluster.remove_node(doomed, allow_graceful=False)


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_another_sweep_json_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep continues only in a folder with results of an earlier sweep."""
    (tmp_path / "cases.yaml").write_text("cases: [{package: x.pt2}]")
    out = tmp_path / "out"
    out.mkdir()
    (out / "sweep.json").write_text('{"mine": true}')
    assert main_run(["sweep", str(tmp_path / "cases.yaml"), "--out", str(out)]) == 2
    assert "out holds other files" in capsys.readouterr().err
    assert (out / "sweep.json").read_text() == '{"mine": true}'
