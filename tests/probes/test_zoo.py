"""Rebuilt packages are the same programs, and their journals tell where they end."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from mcp_server.logs.journal import Journal, read_journal_file
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache, digest_file
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import Context
from tests.conftest import ROOT, ZooPackage
from tests.probes.conftest import Rebuild
from tests.zoo.names import CPU_MODELS, TRIED, thorough

pytestmark = pytest.mark.slow


def child(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **env}
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
        timeout=120,
    )


def inputs_of(package: Path, kind: str = "inputs") -> Path:
    return package.with_name(f"{package.stem}.{kind}.pt")


def run_once(package: Path, inputs: Path, journal: Path, **env: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, torch\n"
        "m = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], 'model', False, 1, -1)\n"
        "m.run(torch.load(sys.argv[2], weights_only=True))\n"
    )
    return child("-c", code, str(package), str(inputs), AOTI_DEBUG_JOURNAL=str(journal), **env)


def test_every_model_of_the_zoo_is_the_same_program(
    zoo: ZooPackage, rebuild: Rebuild, tmp_path: Path
) -> None:
    """Outputs and mutated inputs are bit-identical over three calls, and every launch has probes."""
    pairs, probed = [], {}
    for name in TRIED:
        original = zoo(name)
        before = digest_file(original)
        rebuilt = rebuild(name)
        assert digest_file(original) == before
        assert rebuilt.skipped == (), name
        probed[name] = rebuilt.probed["model"]
        pairs.append(
            {"original": str(original), "rebuilt": str(rebuilt.package), "inputs": str(inputs_of(original))}
        )
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    done = child("-m", "tests.probes.pairs", str(tmp_path / "pairs.json"))
    assert done.returncode == 0, done.stderr
    assert dict(zip(TRIED, json.loads(done.stdout), strict=True)) == dict.fromkeys(TRIED, True)
    launches = {n: len(read_wrapper(open_package(zoo(n)).wrapper_text).launches) for n in TRIED}
    assert probed == launches


def test_no_model_of_the_zoo_is_left_out() -> None:
    """The list of names holds every entry of the zoo's source."""
    source = (ROOT / "tests" / "zoo" / "models.py").read_text()
    assert sorted(re.findall(r"\bEntry\(\s*\"(\w+)\"", source)) == sorted(CPU_MODELS)


BAD = [
    ("ranker", "index", 0),
    pytest.param("jagged", "index", 0, marks=thorough),
    pytest.param("scatter", "index", 2, marks=thorough),
]


@pytest.mark.parametrize(("name", "kind", "launch"), BAD)
def test_a_bad_index_ends_the_journal_at_the_guilty_launch(
    zoo: ZooPackage, rebuild: Rebuild, tmp_path: Path, name: str, kind: str, launch: int
) -> None:
    """The last entry is the launch whose kernel asserts, and the failure text is that of the original."""
    inputs = inputs_of(zoo(name), f"bad-{kind}")
    done = run_once(rebuild(name).package, inputs, tmp_path / "j.jsonl")
    plain = run_once(zoo(name), inputs, tmp_path / "none.jsonl")
    ending = read_journal_file(tmp_path / "j.jsonl").ending
    assert ending.how in ("threw", "died") and ending.launch is not None and ending.launch.launch == launch
    assert done.returncode == plain.returncode
    bound = next(line for line in plain.stderr.splitlines() if "index out of bounds" in line)
    assert bound.strip() in done.stderr


def test_a_launch_can_be_stopped_at(zoo: ZooPackage, rebuild: Rebuild, tmp_path: Path) -> None:
    """AOTI_DEBUG_STOP_AT ends the run before that launch, with a text that says so."""
    done = run_once(
        rebuild("ranker").package, inputs_of(zoo("ranker")), tmp_path / "j.jsonl", AOTI_DEBUG_STOP_AT="2"
    )
    assert done.returncode == 1 and "stopped before launch 2" in done.stderr
    journal = read_journal_file(tmp_path / "j.jsonl")
    assert [launch.launch for launch in journal.launches if launch.ended_ns] == [0, 1]


def test_a_loop_counts_its_launches(zoo: ZooPackage, rebuild: Rebuild, tmp_path: Path) -> None:
    """The body of a while_loop runs three times: same launch numbers, growing sequence."""
    run_once(rebuild("loop").package, inputs_of(zoo("loop")), tmp_path / "j.jsonl")
    launches = read_journal_file(tmp_path / "j.jsonl").launches
    assert [launch.launch for launch in launches] == [0, 1, 2] * 3 + [0, 3]
    assert [launch.sequence for launch in launches] == list(range(11))


FOREVER = (
    "import sys, torch\n"
    "m = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], 'model', False, 1, -1)\n"
    "inputs = torch.load(sys.argv[2], weights_only=True)\n"
    "while True: m.run([t.clone() for t in inputs])\n"
)


def kill_at_random(package: Path, inputs: Path, journal: Path, seed: int) -> Journal:
    """Run calls in a loop and kill -9 within 30 ms of the journal's first bytes."""
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


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_any_moment_leaves_a_journal_that_parses(
    zoo: ZooPackage, rebuild: Rebuild, tmp_path: Path, seed: int
) -> None:
    """At most the last line is cut, and only the last call may be unfinished."""
    journal = kill_at_random(rebuild("ranker").package, inputs_of(zoo("ranker")), tmp_path / "j", seed)
    assert journal.launches and journal.cut_lines <= 1
    assert all(run.end == "returned" for run in journal.runs[:-1])
    assert all(launch.ended_ns for run in journal.runs[:-1] for launch in run.launches)


def test_the_second_rebuild_comes_from_the_cache(
    zoo: ZooPackage, rebuild: Rebuild, cache: Cache, context: Context
) -> None:
    """No compiler runs again; another option is another entry."""
    first = rebuild("ranker")
    again = anyio.run(lambda: instrument(zoo("ranker"), Options(), context, cache=cache))
    assert again.cached and again.package == first.package


def test_concurrent_rebuilds_of_one_package_share_one(
    zoo: ZooPackage, context: Context, tmp_path: Path
) -> None:
    """Three tasks with an empty cache: one builds, two are served from it."""
    results = []

    async def ask() -> None:
        results.append(await instrument(zoo("ranker"), Options(), context, cache=Cache(tmp_path / "cache")))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)

    anyio.run(main)
    assert sorted(one.cached for one in results) == [False, True, True]
    assert len({one.package for one in results}) == 1
