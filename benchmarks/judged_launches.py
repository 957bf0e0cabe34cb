"""How many launches `compare-with-eager --every-launch` judges in a second.

`python -m benchmarks.judged_launches [--launches 200 1000] [--rows 256] [--width 256] [--device cuda]`
compiles a chain of that many launches for each number, judges all of them, and writes judged_launches.json:
seconds of the whole comparison, with its imports and the rebuild of the package, and the rate, which is what
more launches add.

`--shards 2` compares one process with that many shards on a Ray cluster of this machine, in turns, on the
chain of MANY launches: `in_shards` of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import torch

from benchmarks.kernel_io import HERE, QUICK, compile_all
from mcp_server.model import PackageWorkload
from mcp_server.shards import Shards, on_cluster
from mcp_server.tools.compare_with_eager import Pair, compare_pair
from mcp_server.tools.context import Context

RESULTS = HERE / "judged_launches.json"
ROUNDS = 3


def compiled(launches: int, asked: argparse.Namespace, directory: Path) -> Pair:
    compile_all(argparse.Namespace(**{**vars(asked), "launches": launches, "no_printer": True}), directory)
    workload = PackageWorkload(package=directory / "chain.pt2", inputs=directory / "inputs.pt", env=QUICK)
    return Pair(workload, directory / "program.pt2", ())


def compared(pair: Pair, directory: Path, shards: Shards | None = None) -> tuple[int, float]:
    """Launches judged, and seconds of a comparison."""
    context = Context(directory=directory, python=Path(sys.executable), shards=shards)
    context.directory.mkdir()
    start = time.monotonic()
    found = anyio.run(partial(compare_pair, context, pair, every=True))
    seconds = time.monotonic() - start
    assert found.every_launch is not None and not found.every_launch.wrong, found.summary
    return found.every_launch.judged, seconds


def judged(launches: int, asked: argparse.Namespace, directory: Path) -> dict[str, float]:
    """Launches judged, and seconds of a comparison and of a second one, which needs no rebuild."""
    pair = compiled(launches, asked, directory)
    (count, first), (_, second) = (compared(pair, directory / turn) for turn in ("first", "second"))
    return {"judged": count, "first_s": round(first, 1), "second_s": round(second, 1)}


def in_shards(asked: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Seconds in one process and in shards, each `ROUNDS` times in turns after one that is not counted."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": asked.shards})
    pair, count = compiled(asked.launches[1], asked, directory), 0
    seconds: dict[str, list[float]] = {"one_process_s": [], "in_shards_s": []}
    for turn in range(ROUNDS + 1):
        for way in seconds:
            shards = on_cluster(cluster.address, asked.shards) if way == "in_shards_s" else None
            count, spent = compared(pair, directory / f"{way}-{turn}", shards)
            seconds[way] += [round(spent, 1)] if turn else []
            print(turn, way, round(spent, 1), flush=True)
    cluster.shutdown()
    times = [round(one / parts, 2) for one, parts in zip(*seconds.values(), strict=True)]
    load = round(os.getloadavg()[1], 1)
    kept = {"judged": count, "shards": asked.shards, **seconds, "times_as_fast": times}
    return {**kept, "cores": os.cpu_count(), "load_of_5_minutes": load}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, nargs=2, default=(200, 1000), metavar=("FEW", "MANY"))
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shards", type=int, default=0)
    asked = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if asked.shards:
        with tempfile.TemporaryDirectory() as directory:
            known[asked.device]["in_shards"] = in_shards(asked, Path(directory))
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        return 0
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
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{rate} launches a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
