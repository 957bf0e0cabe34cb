"""How many launches `compare-with-eager` judges in a second.

`python -m benchmarks.judged_launches [--launches 200 1000] [--rows 256] [--width 256] [--device cuda]`
compiles a chain of that many launches for each number, judges all of them, and keeps in results.json:
seconds of the whole comparison, with its imports and the rebuild of the package, and the rate, which is what
more launches add.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
import torch

from benchmarks import keep, kept
from mcp_server.model import PackageWorkload
from mcp_server.runtime.context import Context
from mcp_server.tools.compare_with_eager import Pair, compare_pair

QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "INDUCTOR_PROVENANCE": "1"}


def compiled(launches: int, asked: argparse.Namespace, directory: Path) -> Pair:
    """Compile a chain of that many launches, and return it with its program."""
    shape = map(str, (launches // 2, asked.rows, asked.width, asked.device, directory))
    argv = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("chain.py")), *shape]
    subprocess.run(argv, env={**os.environ, **QUICK}, check=True)
    workload = PackageWorkload(package=directory / "chain.pt2", inputs=directory / "inputs.pt", env=QUICK)
    return Pair(workload, directory / "program.pt2", ())


def compared(pair: Pair, directory: Path) -> tuple[int, float]:
    """Launches judged, and seconds of a comparison."""
    context = Context(directory=directory, python=Path(sys.executable))
    context.directory.mkdir()
    start = time.monotonic()
    found = anyio.run(partial(compare_pair, context, pair))
    seconds = time.monotonic() - start
    assert not found.every_launch.wrong, found.summary
    return found.every_launch.judged, seconds


def judged(launches: int, asked: argparse.Namespace, directory: Path) -> dict[str, float]:
    """Launches judged, and seconds of a comparison and of a second one, which needs no rebuild."""
    pair = compiled(launches, asked, directory)
    (count, first), (_, second) = (compared(pair, directory / turn) for turn in ("first", "second"))
    return {"judged": count, "first_s": round(first, 1), "second_s": round(second, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, nargs=2, default=(200, 1000), metavar=("FEW", "MANY"))
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    known = kept("judged_launches")
    runs = []
    for launches in asked.launches:
        with tempfile.TemporaryDirectory() as directory:
            runs.append(judged(launches, asked, Path(directory)))
            print(runs[-1], flush=True)
    more = runs[1]["judged"] - runs[0]["judged"]
    rate = round(more / (runs[1]["second_s"] - runs[0]["second_s"]))
    shape = {"rows": asked.rows, "width": asked.width}
    found = {"torch": torch.__version__, **shape, "runs": runs, "launches_per_second": rate}
    known[asked.device] = {**known.get(asked.device, {}), **found}
    keep("judged_launches", known)
    print(f"{rate} launches a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
