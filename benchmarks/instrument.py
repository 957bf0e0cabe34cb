"""What a rebuild with probes costs, against a compile of the same model in the same run.

`python -m benchmarks.instrument [--packages DIRECTORY] [NAME]` prints wall and processor seconds of the cold
rebuild, of one from the cache, and of `aoti_compile_and_package`; and of the rebuild of a wrapper of 1,000
launches. Processor seconds hardly change with what else the machine does. DIRECTORY holds packages of
`tests.zoo.build`, for CUDA say.

Measured on an H200 (16 cores, torch 2.11, g++ 13.3) with the CUDA `ranker`: a rebuild takes 4.6 s with an
empty cache, 3.5 s for the next package, 0.1 s from the cache; the compile 21.9 s; 1,000 launches 4.9 s.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio

from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.runtime.context import Context
from tests.conftest import ROOT, build

LAUNCHES = 1000


@dataclass(frozen=True)
class Spent:
    """Seconds of the clock, and of processors in children."""

    wall: float
    processor: float

    def __str__(self) -> str:
        return f"{self.wall:8.2f} s, {self.processor:.1f} s of processor time"


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rebuild(package: Path, directory: Path, cache: Cache) -> tuple[Instrumented, Spent]:
    start, before = time.perf_counter(), children_s()
    context = Context(Path(tempfile.mkdtemp(dir=directory)), Path(sys.executable))
    done = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    return done, Spent(time.perf_counter() - start, children_s() - before)


def compile_again(package: Path, directory: Path) -> Spent:
    """What `aoti_compile_and_package` takes with empty caches; the clock leaves torch's import out."""
    code = (
        "import sys, time, torch, tests.zoo.models\n"
        "exported = torch.export.load(sys.argv[1])\n"
        "start = time.perf_counter()\n"
        "torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[2])\n"
        "print('seconds', time.perf_counter() - start)\n"
    )
    exported = package.with_name(f"{package.stem}.exported.pt2")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "cold"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
    }
    env = {**os.environ, **caches, "TORCHINDUCTOR_VEC_ISA_OK": "1", "PYTHONPATH": path}
    before = children_s()
    argv = [sys.executable, "-W", "ignore", "-c", code, str(exported), str(directory / "again.pt2")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return Spent(float(done.stdout.split("seconds")[-1]), children_s() - before)


def enlarge(package: Path, target: Path) -> Path:
    """A copy whose first launch is repeated until the wrapper has LAUNCHES launches."""
    text = open_package(package).wrapper_text
    launch = read_wrapper(text).launches[0]
    statement = text[launch.start : launch.end] + "\n"
    missing = LAUNCHES - len(read_wrapper(text).launches)
    large = text[: launch.start] + statement * missing + text[launch.start :]
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info, large if info.filename.endswith(".wrapper.cpp") else data)
    return target


def measure(package: Path, directory: Path) -> Iterator[tuple[str, str]]:
    """Rows of the table: what, and how much against which limit."""
    cache = Cache(directory / "cache")
    _, first = rebuild(package, directory, cache)
    yield "rebuild, empty cache", f"{first} (limit 5 on 2 cores, 8 for CUDA)"
    _, cached = rebuild(package, directory, cache)
    yield "rebuild, cached", f"{cached} (limit 0.2)"
    compiled = compile_again(package, directory)
    yield (
        "aoti_compile_and_package",
        f"{compiled}: {compiled.wall / first.wall:.1f} times the first rebuild (limit 3)",
    )
    _, large = rebuild(enlarge(package, directory / "large.pt2"), directory, cache)
    yield f"rebuild of {LAUNCHES} launches", f"{large} (limit 15)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="ranker")
    parser.add_argument("--packages", type=Path)
    asked = parser.parse_args()
    package = asked.packages / f"{asked.name}.pt2" if asked.packages else build(asked.name)
    with tempfile.TemporaryDirectory() as directory:
        for what, how_much in measure(package.resolve(), Path(directory)):
            print(
                f"{what:32} {how_much}   [load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores]",
                flush=True,
            )


if __name__ == "__main__":
    main()
