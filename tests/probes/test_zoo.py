"""Rebuilt packages give the same results, and their journals have every launch."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.logs.journal import read_journal_file
from mcp_server.model import PackageWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache, digest_file
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.worker import events
from tests.conftest import ROOT, Zoo, torch_environment
from tests.probes.conftest import Rebuild
from tests.served import served
from tests.support.tools import tool
from tests.zoo.names import CPU_MODELS, THOROUGH, TRIED, thorough

pytestmark = pytest.mark.slow


def child(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**torch_environment(), "PYTHONWARNINGS": "ignore", **env}
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": 600}
    return subprocess.run([sys.executable, *argv], cwd=ROOT, env=environment, **options)


def inputs_of(package: Path, kind: str = "inputs") -> Path:
    return package.with_name(f"{package.stem}.{kind}.pt")


def run_once(package: Path, inputs: Path, journal: Path, **env: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, torch\n"
        "m = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], 'model', False, 1, -1)\n"
        "m.run(torch.load(sys.argv[2], weights_only=True))\n"
    )
    return child("-c", code, str(package), str(inputs), AOTI_DEBUG_JOURNAL=str(journal), **env)


def test_every_model_of_the_zoo_is_the_same_program(zoo: Zoo, rebuild: Rebuild, tmp_path: Path) -> None:
    """Outputs and mutated inputs are bit-identical over three calls, and every launch has probes."""
    source = (ROOT / "tests" / "zoo" / "models.py").read_text()
    assert sorted(re.findall(r"\bEntry\(\s*\"(\w+)\"", source)) == sorted(CPU_MODELS)  # none is left out
    probed, pairs = {}, {}
    for name in TRIED:
        original = zoo(name)
        before = digest_file(original)
        rebuilt = rebuild(name)
        assert digest_file(original) == before
        assert rebuilt.skipped == (), name
        assert rebuild(name).cached and rebuild(name).package == rebuilt.package
        probed[name] = rebuilt.probed["model"]
        pairs[name] = (original, rebuilt.package)
    assert same(pairs, tmp_path) == dict.fromkeys(TRIED, True)
    assert probed == {n: len(read_wrapper(open_package(zoo(n)).wrapper_text).launches) for n in TRIED}


def same(pairs: Mapping[str, tuple[Path, Path]], directory: Path, device: str = "cpu") -> dict[str, bool]:
    """Return by name whether a package and its rebuilt copy give the same results."""
    told = [
        {"original": str(one), "rebuilt": str(other), "inputs": str(inputs_of(one)), "device": device}
        for one, other in pairs.values()
    ]
    (directory / "pairs.json").write_text(json.dumps(told))
    done = child("-m", "tests.probes.pairs", str(directory / "pairs.json"))
    assert done.returncode == 0, done.stderr
    return dict(zip(pairs, json.loads(done.stdout), strict=True))


# Compiling takes a minute for each model: only what differs on CUDA, unless AOTI_DEBUG_CUDA_ZOO names a
# directory of packages made by `tests.zoo.build NAME DIRECTORY cuda`.
GIVEN = os.environ.get("AOTI_DEBUG_CUDA_ZOO")
USER_KERNELS = ("user_lookup", "user_shift", "user_spread")
ON_CUDA = (*CPU_MODELS, *USER_KERNELS) if GIVEN else ("ranker", "loop", "branch", "plugin", *USER_KERNELS[:2])


@pytest.mark.gpu
def test_cuda_models_are_the_same_programs(context: Context, cache: Cache, tmp_path: Path) -> None:
    """On a GPU as well, outputs of three calls are bit-identical, and every launch has probes."""
    pairs = {}
    for name in ON_CUDA:
        package = Path(GIVEN or tmp_path) / f"{name}.pt2"
        if not GIVEN:
            done = child("-m", "tests.zoo.build", name, str(tmp_path), "cuda")
            assert done.returncode == 0, done.stderr[-4000:]
        rebuilt = anyio.run(partial(instrument, package, Options(), context, cache=cache))
        assert rebuilt.skipped == (), name
        pairs[name] = (package, rebuilt.package)
    assert same(pairs, tmp_path, "cuda") == dict.fromkeys(ON_CUDA, True)


BAD = [
    ("ranker", "index", 0),
    pytest.param("jagged", "index", 0, marks=thorough),
    pytest.param("scatter", "index", 2, marks=thorough),
]


@pytest.mark.parametrize(("name", "kind", "launch"), BAD)
def test_a_bad_index_ends_the_journal_at_the_guilty_launch(
    zoo: Zoo, rebuild: Rebuild, tmp_path: Path, name: str, kind: str, launch: int
) -> None:
    """The journal ends at the launch whose kernel asserts, and the error text is that of the original."""
    inputs = inputs_of(zoo(name), f"bad-{kind}")
    done = run_once(rebuild(name).package, inputs, tmp_path / "j.jsonl")
    plain = run_once(zoo(name), inputs, tmp_path / "none.jsonl")
    ending = read_journal_file(tmp_path / "j.jsonl").ending
    assert ending.how in ("threw", "died") and ending.launch is not None and ending.launch.launch == launch
    assert done.returncode == plain.returncode
    bound = next(line for line in plain.stderr.splitlines() if "index out of bounds" in line)
    assert bound.strip() in done.stderr


def test_launches_are_counted_and_can_be_stopped_at(zoo: Zoo, rebuild: Rebuild, tmp_path: Path) -> None:
    """The body of a while_loop runs three times: same launch numbers, growing sequence.

    AOTI_DEBUG_STOP_AT ends the run before that launch, and the error says so.
    """
    package, inputs = rebuild("loop").package, inputs_of(zoo("loop"))
    run_once(package, inputs, tmp_path / "j.jsonl")
    launches = read_journal_file(tmp_path / "j.jsonl").launches
    assert [launch.launch for launch in launches] == [0, 1, 2] * 3 + [0, 3]
    assert [launch.sequence for launch in launches] == list(range(11))
    done = run_once(package, inputs, tmp_path / "k.jsonl", AOTI_DEBUG_STOP_AT="2")
    assert done.returncode == 1 and "stopped before launch 2" in done.stderr
    journal = read_journal_file(tmp_path / "k.jsonl")
    assert [launch.launch for launch in journal.launches if launch.ended_ns] == [0, 1]


FOREVER = (
    "import sys, torch\n"
    "m = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], 'model', False, 1, -1)\n"
    "inputs = torch.load(sys.argv[2], weights_only=True)\n"
    "while True: m.run([t.clone() for t in inputs])\n"
)


def kill_at_random(package: Path, inputs: Path, journal: Path, seed: int) -> Any:
    """Run calls in a loop, and kill -9 within 30 ms after the journal's first bytes."""
    environment = {**os.environ, "AOTI_DEBUG_JOURNAL": str(journal)}
    argv = [sys.executable, "-c", FOREVER, str(package), str(inputs)]
    process = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not journal.exists() or journal.stat().st_size == 0:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.005)
        time.sleep(random.Random(seed).uniform(0, 0.03))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return read_journal_file(journal)


def test_a_kill_at_any_time_leaves_a_journal_that_parses(zoo: Zoo, rebuild: Rebuild, tmp_path: Path) -> None:
    """Only the last line may be cut, and only the last call unfinished."""
    for seed in range(3 if THOROUGH else 1):
        journal = kill_at_random(rebuild("ranker").package, inputs_of(zoo("ranker")), tmp_path / "j", seed)
        assert journal.launches and journal.cut_lines <= 1
        assert all(run.end == "returned" for run in journal.runs[:-1])
        assert all(launch.ended_ns for run in journal.runs[:-1] for launch in run.launches)
        (tmp_path / "j").unlink()


# Launches and their arguments.


def observe(context: Context, package: Path, inputs: Path, **request: object) -> WorkerRun:
    """The events of one `observe` request."""
    asked: Mapping[str, object] = {"package": package, "inputs": inputs, **request}
    return served(Context.worker, context, "observe", asked)


def test_values_match_what_the_model_computes(zoo: Zoo, rebuild: Rebuild, context: Context) -> None:
    """The last launch's output and the model's output have the same checksum; a view has its own shape.

    `launches`, `phases` and `names` restrict the events.
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
    told = observe(context, package, inputs, **some).all(events.Argument)
    seen = [(event.launch, event.phase, event.name) for event in told]
    assert seen == [(1, "after", "buf1"), (2, "after", "buf3")]


def test_tensors_are_saved_below_a_cap(zoo: Zoo, rebuild: Rebuild, context: Context, tmp_path: Path) -> None:
    """A saved tensor is a file with its bytes. Nothing is written beyond `save_bytes`."""
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


def test_a_package_without_probes_is_refused(zoo: Zoo, context: Context) -> None:
    """Observing a package without probes is an error and not an empty result."""
    with pytest.raises(ProblemError, match="not instrumented"):
        observe(context, zoo("ranker"), inputs_of(zoo("ranker")))


@thorough
def test_what_a_launch_fills_first_is_not_read_before(zoo: Zoo, rebuild: Rebuild, context: Context) -> None:
    """With `skip_before`, a buffer that the launch fills is not read before: it might have NaN by chance."""
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


def test_runners_and_threads_apart(zoo: Zoo, rebuild: Rebuild, context: Context, tmp_path: Path) -> None:
    """Three threads make sixty calls: each has its five launches in order, on one thread."""
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


# Kernels under a sanitizer.


def test_a_good_run_is_traced_whole(zoo: Zoo, rebuild: Rebuild, context: Context) -> None:
    """Two calls have five launches each, with arguments, lines of the wrapper and of the model."""
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
def test_undefined_behaviour_is_put_on_its_launch_and_input(zoo: Zoo, tmp_path: Path) -> None:
    """An index of 2**60 overflows the product with the row size before memory is accessed."""
    torch.save([torch.full((8, 6), 2**60)], tmp_path / "huge.pt")
    workload = PackageWorkload(package=zoo("ranker"), inputs=tmp_path / "huge.pt")
    found = tool("locate_fault", tmp_path, workload, tool="ubsan")
    assert found.fault is not None and found.fault.kernel == "cpp_fused_embedding_0"
    assert "signed integer overflow" in found.fault.text
    assert found.fault.launch is not None and found.fault.launch.index == 0
