"""Launches and their arguments are seen, one by one, and in the sanitised build of their kernels."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.logs.journal import read_journal_file
from mcp_server.model import PackageWorkload
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.worker import events
from tests.conftest import ZooPackage
from tests.probes.conftest import Rebuild
from tests.served import served
from tests.support.tools import tool
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow


def observe(context: Context, package: Path, inputs: Path, **request: object) -> WorkerRun:
    """The events of one observation."""
    asked: Mapping[str, object] = {"package": package, "inputs": inputs, **request}
    return served(Context.worker, context, "observe", asked)


def inputs_of(package: Path, kind: str = "inputs") -> Path:
    return package.with_name(f"{package.stem}.{kind}.pt")


def test_values_match_what_the_model_computes(zoo: ZooPackage, rebuild: Rebuild, context: Context) -> None:
    """The last launch's output and the model's output have one checksum; a view has its own shape.

    Launches, phases and names restrict the events.
    """
    package, inputs = rebuild("ranker").package, inputs_of(zoo("ranker"))
    done = observe(context, package, inputs)
    called = done.last(events.Called)
    assert called is not None
    last = [e for e in done.all(events.Argument) if e.phase == "after"][-1]
    assert last.checksum == called.outputs[0].checksum
    weight = next(e for e in done.all(events.Argument) if e.name == "hidden_weight")
    assert (weight.shape, weight.stride) == ([16, 32], [1, 16])
    some = {"launches": [1, 2], "phases": ["after"], "names": ["buf1", "out_ptr0"]}
    seen = [
        (e.launch, e.phase, e.name) for e in observe(context, package, inputs, **some).all(events.Argument)
    ]
    assert seen == [(1, "after", "buf1"), (2, "after", "buf3")]


def test_tensors_are_saved_below_the_cap(
    zoo: ZooPackage, rebuild: Rebuild, context: Context, tmp_path: Path
) -> None:
    """A saved tensor is a file with the tensor's bytes; beyond `save_bytes` nothing is written."""
    (tmp_path / "saved").mkdir()
    done = observe(
        *(context, rebuild("ranker").package, inputs_of(zoo("ranker"))),
        save=tmp_path / "saved",
        save_bytes=4000,
        phases=["after"],
        statistics=False,
    )
    told = done.all(events.Argument)
    saved = [e for e in told if e.saved]
    assert 0 < len(saved) < len(told)
    assert sum(e.bytes or 0 for e in saved) <= 4000
    assert {Path(str(e.saved)) for e in saved} == set((tmp_path / "saved").iterdir())


def test_a_package_without_probes_is_refused(zoo: ZooPackage, context: Context) -> None:
    """Observing an uninstrumented package is a problem, not an empty result."""
    with pytest.raises(ProblemError, match="not instrumented"):
        observe(context, zoo("ranker"), inputs_of(zoo("ranker")))


@thorough
def test_what_a_launch_fills_first_is_not_read_before(
    zoo: ZooPackage, rebuild: Rebuild, context: Context
) -> None:
    """`skip_before` keeps uninitialised memory out: no NaN by chance from a buffer that the launch fills."""
    inputs = inputs_of(zoo("attention"))
    done = observe(context, rebuild("attention").package, inputs, skip_before={"0": ["buf1"]}, launches=[0])
    seen = [(e.phase, e.name) for e in done.all(events.Argument)]
    assert ("before", "buf1") not in seen
    assert {("before", "arg6_1"), ("after", "buf1")} <= set(seen)


THREADS = """
import sys, threading, torch
threads = int(sys.argv[3])
package, inputs = sys.argv[1:3]
loader = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, threads, -1)
given = torch.load(inputs, weights_only=True)
def work():
    for _ in range(20): loader.run([t.clone() for t in given])
workers = [threading.Thread(target=work) for _ in range(threads)]
[w.start() for w in workers]; [w.join() for w in workers]
"""


def test_several_runners_and_threads_are_kept_apart(
    zoo: ZooPackage, rebuild: Rebuild, context: Context, tmp_path: Path
) -> None:
    """Sixty calls from three threads: every call has its five launches in order, on one thread."""
    script = tmp_path / "threads.py"
    script.write_text(THREADS)
    argv = (sys.executable, str(script), str(rebuild("ranker").package), str(inputs_of(zoo("ranker"))), "3")
    env = {"AOTI_DEBUG_JOURNAL": str(tmp_path / "j.jsonl")}
    finished = anyio.run(lambda: context.run(Command(argv, tmp_path, env=env), "threads"))
    assert finished.ok, finished.stderr.read_text()
    runs = read_journal_file(tmp_path / "j.jsonl").runs
    assert len(runs) == 60 and {run.end for run in runs} == {"returned"}
    assert all([launch.launch for launch in run.launches] == [0, 1, 2, 3, 4] for run in runs)
    assert all({launch.thread for launch in run.launches} == {run.thread} for run in runs)
    assert len({run.thread for run in runs}) == 3


# Launches told one by one, and the sanitised build of their kernels, which sees what asserts do not.


def test_a_good_run_is_traced_whole(zoo: ZooPackage, rebuild: Rebuild, context: Context) -> None:
    """Two calls of five launches, with arguments, wrapper lines and the model's own lines."""
    rebuild("ranker")
    package = zoo("ranker")
    workload = PackageWorkload(package=package, inputs=inputs_of(package))
    seen = tool("trace_launches", context.directory, workload, calls=2)
    assert (seen.how, seen.total, seen.calls, seen.cached) == ("returned", 10, 2, True)
    first = seen.launches[0]
    assert first.kernel == "cpp_fused_embedding_0" and first.arguments[-1] == "ks0 = 8"
    assert first.arguments[1].startswith("table_weight in_ptr1 read float32 (32, 16) stride (16, 1) at 0x")
    assert [place.code for place in first.model] == ["rows = self.table(ids)"]
    table = next(a for a in seen.artifacts if a.path.name == "trace.json")
    assert [row["launch"] for row in json.loads(table.path.read_text())] == [0, 1, 2, 3, 4] * 2


@thorough
def test_undefined_behaviour_is_put_on_its_launch_and_input(zoo: ZooPackage, tmp_path: Path) -> None:
    """An index of 2**60 overflows the product with the row's size before any memory is touched."""
    torch.save([torch.full((8, 6), 2**60)], tmp_path / "huge.pt")
    workload = PackageWorkload(package=zoo("ranker"), inputs=tmp_path / "huge.pt")
    found = tool("locate_fault", tmp_path, workload, tool="ubsan")
    assert found.fault is not None and found.fault.kernel == "cpp_fused_embedding_0"
    assert "signed integer overflow" in found.fault.text
    assert found.fault.launch is not None and found.fault.launch.index == 0
