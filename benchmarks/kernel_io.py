"""What looking at every launch costs: plain run, launch probes with statistics, value printer at level 2.

`python -m benchmarks.kernel_io [--device cuda] [--launches 200] [--rows 256] [--width 512] [--no-printer]
[--directory KEPT]` compiles a chain of that many launches and prints, of the same call in the same run,
seconds of process and call, peak memory, and bytes that a reader gets; then the time to the first bad value,
which the last launch makes, with a package that was not rebuilt before and with one that was.

All children run with the environment of the product's workers. Processor seconds of all processes are told
beside the seconds on the clock, which alone grow on a busy machine.

Limits: all launches with statistics at most 3 x the plain run on a GPU and 5 x on a CPU, memory at most 1 GB
more; the first bad value of 1,000 launches at most 10 s beyond the import of torch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

import mcp_server.worker
from mcp_server.model import PackageWorkload
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import WORKER_ENV, Context, stream_events
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.kernel_io import KernelIO
from mcp_server.worker.events import Called, Torch

HERE = Path(__file__).resolve().parent
WORKER = Path(mcp_server.worker.__file__).parent
QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "INDUCTOR_PROVENANCE": "1"}


@dataclass(frozen=True)
class Seen:
    """One child: its own facts, the seconds of its last call, and how much it printed."""

    facts: dict[str, Any]
    call_s: float
    printed: int

    @property
    def run_s(self) -> float:
        """The whole run as a user waits for it."""
        return float(self.facts["import_s"]) + self.work_s

    @property
    def work_s(self) -> float:
        """Without the import of torch."""
        return float(self.facts["work_s"])


def compile_all(asked: argparse.Namespace, directory: Path) -> float:
    """The package with and without the printer, side by side; seconds until both are there."""
    start = time.perf_counter()
    shape = [str(asked.launches // 2), str(asked.rows), str(asked.width), asked.device, str(directory)]
    argv = [sys.executable, "-W", "ignore", str(HERE / "kernel_io_model.py"), *shape]
    kinds = [""] if asked.no_printer else ["", "2"]
    running = [
        subprocess.Popen([*argv, kind], env={**os.environ, **QUICK})
        for kind in kinds
        if not (directory / f"chain{kind}.pt2").exists()
    ]
    assert all(one.wait() == 0 for one in running), "a compile failed"
    return time.perf_counter() - start


def child(request: dict[str, Any], directory: Path, preload: tuple[str, ...] = ()) -> Seen:
    """One request of the worker in a process of its own."""
    place = Path(tempfile.mkdtemp(dir=directory))
    (place / "request.json").write_text(json.dumps(request, default=str))
    argv = [sys.executable, "-u", str(HERE / "kernel_io_child.py"), str(WORKER)]
    argv += [str(place / "request.json"), str(place / "report.jsonl")]
    env = {**os.environ, **WORKER_ENV, **({"LD_PRELOAD": " ".join(preload)} if preload else {})}
    with (place / "stdout").open("wb") as stdout:
        subprocess.run(argv, env=env, stdout=stdout, check=True)
    *_, last = (place / "stdout").read_text(errors="replace").splitlines()
    facts = json.loads(last)
    assert facts["status"] == 0, (place / "report.jsonl").read_text()[-2000:]
    called = list(stream_events(place / "report.jsonl", Called))
    return Seen(facts, called[-1].seconds, (place / "stdout").stat().st_size - len(last))


def used() -> float:
    """Processor seconds of this process and of its children that ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def import_cost() -> float:
    """Processor seconds that the import of torch takes."""
    before = used()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return used() - before


async def first_bad(workload: PackageWorkload, directory: Path) -> tuple[KernelIO, float, float]:
    """The outcome, and seconds beyond the import of torch: on the clock, and of processors."""
    context = Context(Path(tempfile.mkdtemp(dir=directory)), Path(sys.executable))
    start, spent = time.perf_counter(), used()
    found = await dump_kernel_io(context, workload, stop_at_first_bad=True)
    seconds, spent = time.perf_counter() - start, used() - spent
    (report,) = context.directory.glob("*/report.jsonl")
    imported = next(event.t for event in stream_events(report, Torch))
    return found, seconds - imported, spent - import_cost()


def compare(name: str, seen: Seen, plain: Seen) -> None:
    more = [seen.facts[kind] - plain.facts[kind] for kind in ("host_bytes", "device_bytes")]
    print(
        f"{name:<22} run {seen.run_s:7.2f} s ({seen.run_s / plain.run_s:5.2f} x)"
        f"   without import {seen.work_s:7.2f} s ({seen.work_s / plain.work_s:5.2f} x)"
        f"   processor {seen.facts['work_cpu_s']:6.2f} s"
        f"   call {seen.call_s:7.3f} s ({seen.call_s / plain.call_s:6.1f} x)"
        f"   host +{more[0] / 2**20:.0f} MiB   device +{more[1] / 2**20:.0f} MiB",
        flush=True,
    )


def measure(asked: argparse.Namespace, directory: Path) -> None:
    print(f"compiled in {compile_all(asked, directory):.1f} s", flush=True)
    package, inputs = directory / "chain.pt2", directory / "inputs.pt"
    request = {"operation": "run", "package": package, "inputs": inputs}
    # The first run of all pays for the disk; it is not counted.
    plain = [child(request, directory) for _ in range(2)][-1]
    compare("plain", plain, plain)
    cache = Cache(directory / "rebuilt")
    context = Context(Path(tempfile.mkdtemp(dir=directory)), Path(sys.executable))
    start = time.perf_counter()
    rebuilt = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    print(f"rebuilt with probes in {time.perf_counter() - start:.1f} s", flush=True)
    looking = {**request, "operation": "observe", "package": rebuilt.package}
    watched = child(looking, directory, tuple(rebuilt.preload))
    compare("probes, statistics", watched, plain)
    if not asked.no_printer:
        printed = child({**request, "package": directory / "chain2.pt2"}, directory)
        compare("printer level 2", printed, plain)
        print(f"printer / probes: {printed.call_s / watched.call_s:.2f} x the time of the call", flush=True)
    workload = PackageWorkload(package=package, inputs=inputs)
    for kind in ("not rebuilt before", "rebuilt before"):
        found, seconds, spent = anyio.run(first_bad, workload, directory)
        assert found.first_bad is not None
        told = len(found.first_bad.summary), len(found.model_dump_json(exclude_none=True))
        print(f"first bad value, {kind}: {seconds:.1f} s beyond the import (processor {spent:.1f} s)")
        print(f"  {found.first_bad.summary[:150]}")
        print(f"  a reader gets {told[0]} bytes of summary, {told[1]} of result", end="")
        print("" if asked.no_printer else f"; of the printer {printed.printed} bytes", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--no-printer", action="store_true")
    parser.add_argument("--directory", type=Path)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    if asked.directory:
        asked.directory.mkdir(parents=True, exist_ok=True)
        measure(asked, asked.directory)
        return
    with tempfile.TemporaryDirectory() as directory:
        os.environ["AOTI_DEBUG_CACHE"] = directory  # nothing was rebuilt before
        measure(asked, Path(directory))


if __name__ == "__main__":
    main()
