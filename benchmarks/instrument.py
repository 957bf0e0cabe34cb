"""What a rebuild with probes costs, against a compile of the same model in the same run.

`python -m benchmarks.instrument [NAME]` prints seconds of the cold rebuild, of one from the cache, and of
`aoti_compile_and_package`; microseconds that the journal and a Python subscriber add for each tensor
argument; and the rebuild of a wrapper of 1,000 launches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import anyio

from mcp_server.instrument.build import instrument
from mcp_server.instrument.cache import Cache
from mcp_server.instrument.types import Instrumented, Options
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.steps.context import Context
from tests.conftest import ROOT, build

LAUNCHES = 1000


def rebuild(package: Path, directory: Path, cache: Cache) -> tuple[Instrumented, float]:
    start = time.perf_counter()
    context = Context(Path(tempfile.mkdtemp(dir=directory)), Path(sys.executable))
    done = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    return done, time.perf_counter() - start


def compile_again(name: str, directory: Path) -> float:
    """Seconds that `aoti_compile_and_package` takes with empty caches, torch's import left out."""
    code = (
        "import sys, time, torch, tests.zoo.models\n"
        "exported = torch.export.load(sys.argv[1])\n"
        "start = time.perf_counter()\n"
        "torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[2])\n"
        "print('seconds', time.perf_counter() - start)\n"
    )
    exported = build(name).with_name(f"{name}.exported.pt2")
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "cold"), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-W", "ignore", "-c", code, str(exported), str(directory / "again.pt2")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout.split("seconds")[-1])


def overhead(original: Path, rebuilt: Path, directory: Path, journal: bool) -> dict[str, float]:
    """Seconds of a call: original, with probes, with a subscriber that makes a tensor of each argument."""
    script = Path(__file__).with_name("probe_overhead.py")
    worker = ROOT / "mcp_server" / "worker"
    env = {**os.environ, **({"AOTI_DEBUG_JOURNAL": str(directory / "journal")} if journal else {})}
    inputs = original.with_name(f"{original.stem}.inputs.pt")
    argv = [sys.executable, str(script), str(original), str(rebuilt), str(inputs), str(worker)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    facts: dict[str, float] = json.loads(done.stdout)
    return facts


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


def cold_again(package: Path, directory: Path, cache: Cache, rebuilt: Instrumented) -> tuple[Path, float]:
    """Rebuild when only the support objects are cached; the earlier result is kept for measuring."""
    kept = directory / "kept"
    rebuilt.package.parent.rename(kept)
    _, seconds = rebuild(package, directory, cache)
    return kept / rebuilt.package.name, seconds


def measure(name: str, directory: Path) -> list[tuple[str, float, str]]:
    """Rows of the table: what, how much, in which unit and against which limit."""
    package, cache = build(name), Cache(directory / "cache")
    rebuilt, first = rebuild(package, directory, cache)
    _, cached = rebuild(package, directory, cache)
    kept, cold = cold_again(package, directory, cache, rebuilt)
    compiled = compile_again(name, directory)
    _, large = rebuild(enlarge(package, directory / "large.pt2"), directory, cache)
    quiet = overhead(package, kept, directory, journal=False)
    loud = overhead(package, kept, directory, journal=True)
    arguments = quiet["tensors"] / 2  # each is seen before and after
    micro = 1e6 / arguments
    return [
        ("rebuild, first of this compiler", first, "s"),
        ("rebuild, cold", cold, "s (limit 5)"),
        ("rebuild, cached", cached, "s (limit 0.2)"),
        ("aoti_compile_and_package", compiled, f"s = {compiled / cold:.1f} times the rebuild (limit 3)"),
        (f"rebuild of {LAUNCHES} launches", large, "s (limit 15)"),
        ("probes that nobody uses", (quiet["probed"] - quiet["plain"]) * micro, "us an argument"),
        ("journal", (loud["probed"] - quiet["plain"]) * micro, "us an argument (limit 5)"),
        ("subscriber", (quiet["subscribed"] - quiet["probed"]) * micro / 2, "us a tensor (limit 15)"),
    ]


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(name, Path(directory))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for what, value, unit in rows:
        print(f"{what:32} {value:8.2f} {unit}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ranker")
