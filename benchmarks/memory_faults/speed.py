"""How long `locate_fault` takes beside one plain worker run of the same call, one program at a time.

    python benchmarks/memory_faults/speed.py --built DIRECTORY [--only a,b] [--budget 100] [--json FILE]

DIRECTORY is the `--out` of `run.py`, or of `speed.py --build`, which compiles the programs side by side.
Nothing is cached: each package is rebuilt. Target: the median of `locate_fault` is at most 1.5 times the
median plain run plus 3 s.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import anyio  # noqa: E402
from run import compile_program  # noqa: E402

from mcp_server.model import PackageWorkload  # noqa: E402
from mcp_server.probes.cache import Cache  # noqa: E402
from mcp_server.tools.context import Context  # noqa: E402
from mcp_server.tools.locate_fault import (  # noqa: E402
    LocatedFault,
    locate_fault,
    run_plainly,
)

# Far and near, reads and writes, generated code and user kernels: those that run without a second checker.
NAMES = "generated_read_far,write_adjacent,scalar_offset,read_adjacent,missing_mask,static_size,empty_tensor"


def main() -> None:
    """Build if asked, measure, print."""
    asked = _arguments()
    names = asked.only.split(",")
    if asked.build:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: _build(name, asked.built, asked.device), names))
    deadline = time.monotonic() + asked.budget
    rows = []
    for name in names:
        if time.monotonic() < deadline and (asked.built / name / f"{name}.pt2").exists():
            rows.append(anyio.run(_measure, name, asked.built, asked.device))
            print(json.dumps(rows[-1]), flush=True)
    _print(rows)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--built", type=Path, required=True)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default=NAMES)
    parser.add_argument("--budget", type=float, default=100, help="seconds; nothing is started after them")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _build(name: str, built: Path, device: str) -> None:
    where = built / name
    where.mkdir(parents=True, exist_ok=True)
    compile_program(name, where, device, time.monotonic() + 120)


async def _measure(name: str, built: Path, device: str) -> dict[str, object]:
    """One plain run and one `locate_fault`, with a new cache; where the seconds went."""
    imports = "cuda_programs.py" if device == "cuda" else "programs.py"
    workload = PackageWorkload(
        package=built / name / f"{name}.pt2",
        inputs=built / name / f"{name}.bad.pt",
        extra_imports=[str(HERE / imports)],
    )
    place = built / name / "speed"
    shutil.rmtree(place, ignore_errors=True)
    context = Context(place, Path(sys.executable))
    plain = await run_plainly(context, workload, {}, "plain")
    start = time.monotonic()
    found = await locate_fault(context, workload, cache=Cache(place / "cache"))
    taken = time.monotonic() - start
    return {
        "name": name,
        "plain_s": plain.seconds,
        "locate_s": round(taken, 2),
        "found": found.found,
        "checker_s": [attempt.seconds for attempt in found.attempts],
        "worker": _worker_times(found),
    }


def _worker_times(found: LocatedFault) -> dict[str, float]:
    """Seconds after the worker's start at which each phase of the last checked run began."""
    report = found.artifacts[0].path.parent / "report.jsonl"
    events = [json.loads(line) for line in report.read_text().splitlines()]
    return {event["event"]: event["t"] for event in events if event["event"] != "argument"}


def _print(rows: list[dict[str, object]]) -> None:
    if not rows:
        print("nothing was measured")
        return
    plain, locate = (
        statistics.median(float(str(row[key])) for row in rows) for key in ("plain_s", "locate_s")
    )
    print(f"{len(rows)} programs: plain {plain:.1f} s, locate_fault {locate:.1f} s (medians)")
    print(f"allowed: 1.5 x {plain:.1f} + 3 = {1.5 * plain + 3:.1f} s")


if __name__ == "__main__":
    main()
