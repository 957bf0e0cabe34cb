"""Every launch judged in shards: they say together what one process says, and a lost one is told."""

from __future__ import annotations

import json
import pickle
import sys
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from mcp_server import shards
from mcp_server.cli.main import Exit, run
from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Finished
from mcp_server.shards import Cluster, Lost, Result, Shard, Shards, merge, split
from mcp_server.tools.compare_with_eager import compare_with_eager
from mcp_server.tools.context import WorkerRun
from mcp_server.tools.divergence import ComparedWithEager
from mcp_server.worker.events import Event, Failed, JudgedOutputs, LaunchJudged, Outputs, ShardLost
from tests.conftest import ZooPackage
from tests.served import served
from tests.worker.support import context_in
from tests.wrong_launches.support import call_of, compared, kernels_with
from tests.zoo.names import thorough

Wrong = Callable[[str], Path]


@given(launches=some.integers(1, 2000), count=some.integers(1, 50))
def test_each_launch_is_in_one_shard(launches: int, count: int) -> None:
    """The ranges follow each other, none is empty, and their lengths differ by one at most."""
    parts = split(launches, count)
    assert (parts[0][0], parts[-1][1], len(parts)) == (0, launches, min(count, launches))
    assert all(one[1] == other[0] for one, other in pairwise(parts))
    assert {end - first for first, end in parts} <= {launches // len(parts), -(-launches // len(parts))}


def told(first: int, *events: str, judged: bool = True) -> tuple[Shard, WorkerRun]:
    """A shard of five launches whose worker reported these events, `NAME SEQUENCE`."""
    made: dict[str, Callable[[int], Event]] = {
        "launch_judged": lambda at: LaunchJudged(0, at, "kernel", "buf0", "right"),
        "outputs": lambda at: Outputs(str(at), []),
    }
    named = [made[name](int(at)) for name, at in map(str.split, events)]
    end = JudgedOutputs(True) if judged else Failed("SIGSEGV")
    log = Path("log")
    finished = Finished("exit", 0, None, 1.0, log, log, log)
    return shard(first), WorkerRun(finished, (*named, end), Path(str(first)), Path("python"))


def shard(first: int) -> Shard:
    return Shard(first, first + 5, 0, Path("python"), {}, {})


def test_what_shards_measured_is_put_into_the_order_of_the_call() -> None:
    """A loop makes launches of two shards in turns; what every shard reports is there once."""
    one = told(0, "launch_judged 1", "launch_judged 3", "outputs 9")
    other = told(5, "launch_judged 2", "launch_judged 4", "outputs 9")
    found = merge([one, other])
    assert [event.sequence for event in found.all(LaunchJudged)] == [1, 2, 3, 4]
    assert len(found.all(Outputs)) == len(found.all(JudgedOutputs)) == 1
    assert found.phase == "judged_outputs" and found.all(ShardLost) == []


@pytest.mark.parametrize(
    "other", [(shard(5), Lost("its node died")), told(5, "launch_judged 7", judged=False)]
)
def test_a_shard_that_is_lost_or_crashed_is_told_with_its_launches(
    other: tuple[Shard, WorkerRun | Lost],
) -> None:
    """Nothing that it measured is taken."""
    found = merge([told(0, "launch_judged 1"), other])
    (lost,) = found.all(ShardLost)
    assert (lost.first, lost.end) == (5, 10)
    assert lost.why == f"launches 5 to 9: {other[1].why}"
    assert [event.sequence for event in found.all(LaunchJudged)] == [1]


def test_a_call_that_comes_back_nowhere_is_a_result_and_no_shard_at_all_is_none() -> None:
    """The package itself may crash, as in one process; a cluster that loses every shard has said nothing."""
    assert merge([(shard(0), Lost("its node died")), told(5, judged=False)]).why == "SIGSEGV"
    with pytest.raises(ProblemError, match=r"no shard came back.*launches 5 to 9: killed"):
        merge([(shard(0), Lost("its node died")), (shard(5), Lost("killed"))])


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is imported when it is asked for."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ProblemError, match="Ray is not installed") as refused:
        shards.on_cluster("auto")
    assert refused.value.next_call == "pip install 'aoti-debug[ray]'"


def test_what_a_node_lacks_comes_back_as_a_refusal() -> None:
    """Not as a lost shard, which would be tried again; it is whole after its way between processes."""
    made = anyio.run(shards.judge, Shard(0, 5, 0, Path("no-such-python"), {}, {}))
    result = pickle.loads(pickle.dumps(made))
    assert isinstance(result, ProblemError) and isinstance(made, ProblemError)
    assert (result.what, result.value) == ("no such interpreter", "no-such-python")
    assert result.next_call == made.next_call != ""


class Here:
    """Runs shards one after another on this machine; those that begin in `lost` die."""

    def __init__(self, lost: Sequence[int] = ()) -> None:
        self.lost = lost
        self.tried: list[int] = []

    async def each(self, tasks: Sequence[Shard], done: Callable[[Shard, Result], None]) -> None:
        for one in tasks:
            self.tried.append(one.first)
            done(one, Lost("its node died") if one.first in self.lost else await shards.judge(one))


def in_shards(directory: Path, package: Path, where: Here, count: int) -> ComparedWithEager:
    context = context_in(directory)
    context.shards = Shards(cast(Cluster[Shard, Result], where), count)
    program = package.with_name(f"{package.stem}.exported.pt2")
    return served(compare_with_eager, context, call_of(package), program, every=True)


def said(found: ComparedWithEager) -> dict[str, Any]:
    """All but files, seconds and the number of runs; of files what is in them."""
    assert found.every_launch and found.every_launch.plan and found.every_launch.eager_outputs
    plain: dict[str, Any] = json.loads(found.model_dump_json(exclude={"json_file", "log", "cost"}))
    every = plain["every_launch"]
    every["plan"] = json.loads(found.every_launch.plan.path.read_text())
    for tensors in every["plan"]["stored"].values():
        for one in tensors.values():
            one.pop("t", None)  # seconds since the worker began
    every["eager_outputs"] = [one.tolist() for one in torch.load(found.every_launch.eager_outputs.path)]
    return plain


@thorough
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=thorough), pytest.param(8, marks=thorough)])
def test_shards_say_what_one_process_says(wrong: Wrong, tmp_path: Path, count: int) -> None:
    """The second wrong launch is in another shard than the first, and still judged on right inputs."""
    package = wrong("two")
    found = in_shards(tmp_path, package, Here(), count)
    first, _, third, _ = kernels_with(package, "mul_tanh")
    assert found.every_launch is not None
    assert [one.launch for one in found.every_launch.wrong] == [first, third], found.summary
    assert said(found) == said(compared(tmp_path, package))


@thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "norms", "conv", "ranker", "jagged", "bags", "branch"])
def test_shards_of_a_healthy_package_agree_with_one_process(
    zoo: ZooPackage, tmp_path: Path, name: str
) -> None:
    """Of launches outside of a shard the same value is copied in, also where several nodes may be meant."""
    assert said(in_shards(tmp_path, zoo(name), Here(), 3)) == said(compared(tmp_path, zoo(name)))


@pytest.mark.slow
def test_the_launches_of_a_lost_shard_are_not_called_right(wrong: Wrong, tmp_path: Path) -> None:
    """It is tried twice, and the other shard's wrong launch is found; without one nothing is decided."""
    where = Here(lost=[0])
    found = in_shards(tmp_path, wrong("two"), where, 2)
    assert found.every_launch is not None and where.tried == [0, 4, 0]
    assert [one.launch for one in found.every_launch.wrong] == kernels_with(wrong("two"), "mul_tanh")[2:3]
    assert [one.launch for one in found.every_launch.unjudged] == [0, 1, 2, 3]
    assert "neither compared nor judged: launches 0 to 3: its node died" in found.summary
    healthy = in_shards(tmp_path, wrong("clean"), Here(lost=[4]), 2)
    assert healthy.outcome == "inconclusive" and "launches 4 to 7" in healthy.summary


def typed(package: Path, *more: str) -> list[str]:
    """The command line of the call next to a package."""
    call, program = call_of(package), package.with_name(f"{package.stem}.exported.pt2")
    files = ["--exported", str(program), "--inputs", str(call.inputs)]
    return ["compare-with-eager", str(package), *files, "--every-launch", "--json", *more]


@pytest.mark.ray
def test_two_nodes_say_what_one_process_says(
    cluster: Any, wrong: Wrong, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command line; one wrong launch in the shard of each node."""
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    package = wrong("two")
    code = run(typed(package, "--ray", cluster.address, "--shards", "2"))
    found = ComparedWithEager.model_validate_json(capsys.readouterr().out)
    assert code == Exit.FAULT and found.every_launch is not None
    assert [one.launch for one in found.every_launch.wrong] == [1, 5]
    assert said(found) == said(compared(tmp_path, package))
    assert sorted(path.name for path in found.log.path.parent.parent.iterdir() if path.is_dir()) == [
        "launches-0-to-3",
        "launches-4-to-7",
    ]


KILLER = """
    import json, os, signal, sys
    from pathlib import Path
    request = next(word for word in sys.argv if word.endswith("request.json"))
    if json.loads(Path(request).read_text()).get("launches", [0])[0]:
        pid = os.getppid()
        while b"ray::" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
"""


@pytest.mark.ray
def test_launches_of_a_killed_shard_are_named(
    cluster: Any, wrong: Wrong, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process of Ray that judges the second half is killed, and killed again at the second try."""
    cluster.add_node(num_cpus=2)
    killer = tmp_path / "killer.py"
    killer.write_text(textwrap.dedent(KILLER))
    more = ("--ray", cluster.address, "--shards", "2", "--extra-imports", str(killer))
    assert run(typed(wrong("two"), *more)) == Exit.FAULT
    found = ComparedWithEager.model_validate_json(capsys.readouterr().out)
    assert found.every_launch is not None
    assert [one.launch for one in found.every_launch.wrong] == [1]
    assert [one.launch for one in found.every_launch.unjudged] == [4, 5, 6, 7]
    assert "neither compared nor judged: launches 4 to 7: WorkerCrashedError" in found.summary


@pytest.mark.ray
def test_a_cluster_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything runs, with the address."""
    pytest.importorskip("ray")
    code = run(["compare-with-eager", "x.pt2", "--every-launch", "--ray", "127.0.0.1:1"])
    shown = capsys.readouterr().err
    assert code == Exit.PROBLEM and "no Ray cluster answers" in shown and "127.0.0.1:1" in shown
