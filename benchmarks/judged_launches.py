"""How many launches `compare-with-eager --every-launch` judges in a second.

`python -m benchmarks.judged_launches [--launches 200 1000] [--rows 256] [--width 256] [--device cuda]`
compiles a chain of that many launches for each number, judges all of them, and writes judged_launches.json:
seconds of the whole comparison, with its imports and the rebuild of the package, and the rate, which is what
more launches add.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
import torch

from benchmarks.kernel_io import HERE, QUICK, compile_all
from mcp_server.model import PackageWorkload
from mcp_server.tools.compare_with_eager import Pair, compare_pair
from mcp_server.tools.context import Context

RESULTS = HERE / "judged_launches.json"


def judged(launches: int, asked: argparse.Namespace, directory: Path) -> dict[str, float]:
    """Launches judged, and seconds of a comparison and of a second one, which needs no rebuild."""
    compile_all(argparse.Namespace(**{**vars(asked), "launches": launches, "no_printer": True}), directory)
    workload = PackageWorkload(package=directory / "chain.pt2", inputs=directory / "inputs.pt", env=QUICK)
    pair = Pair(workload, directory / "program.pt2", ())
    seconds, count = [], 0
    for turn in ("first", "second"):
        context = Context(directory=directory / turn, python=Path(sys.executable))
        context.directory.mkdir()
        start = time.monotonic()
        found = anyio.run(partial(compare_pair, context, pair, every=True))
        seconds.append(time.monotonic() - start)
        assert found.every_launch is not None and not found.every_launch.wrong, found.summary
        count = found.every_launch.judged
    return {"judged": count, "first_s": round(seconds[0], 1), "second_s": round(seconds[1], 1)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, nargs=2, default=(200, 1000), metavar=("FEW", "MANY"))
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    runs = []
    for launches in asked.launches:
        with tempfile.TemporaryDirectory() as directory:
            runs.append(judged(launches, asked, Path(directory)))
            print(runs[-1], flush=True)
    more = runs[1]["judged"] - runs[0]["judged"]
    rate = round(more / (runs[1]["second_s"] - runs[0]["second_s"]))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    shape = {"rows": asked.rows, "width": asked.width}
    known[asked.device] = {"torch": torch.__version__, **shape, "runs": runs, "launches_per_second": rate}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{rate} launches a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
