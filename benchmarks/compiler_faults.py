"""Public reports of wrong code, each bisected to the compiler's decision.

`python -m benchmarks.compiler_faults [--programs NAME ...] [--device cuda] [--jobs N]`. Every report fails
through AOTInductor on torch 2.13 for the CPU, where eager is right; on another device or release only some
do. The healthy programs only round differently, and must not be bisected. The results are kept in
results.json as `compiler_faults`, those of a GPU there under `cuda`.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import anyio
import torch

from benchmarks import keep, kept
from benchmarks.reported_programs import PROGRAMS, Model, Program
from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload
from mcp_server.runtime.context import Context
from mcp_server.tools.bisect import bisect
from mcp_server.tools.switches import Bisected

EXPORTING = threading.Lock()  # `torch.export` keeps the program that it traces in a global


def outcome(program: Program, device: str, directory: Path) -> dict[str, object]:
    """What `bisect` says of one program, and what that cost."""
    inputs = tuple(each.to(device) for each in program.inputs)
    with EXPORTING:
        torch.export.save(torch.export.export(Model(program.run), inputs), directory / "program.pt2")
    torch.save(list(inputs), directory / "inputs.pt")
    workload = ExportedWorkload(exported=directory / "program.pt2", inputs=directory / "inputs.pt")
    context = Context(directory=directory / "job", python=Path(sys.executable))
    context.directory.mkdir()
    start = time.monotonic()
    try:
        found: Bisected = anyio.run(partial(bisect, context, workload))
    except ProblemError as problem:
        return {"outcome": "no failure" if "does not fail" in str(problem) else str(problem)}
    workaround = found.workaround
    return {
        "outcome": found.outcome,
        "kind": [one.kind for one in found.decisions],
        "named": [", ".join(one.rewrites) or one.operator or one.name for one in found.decisions],
        "compiles": found.compiles,
        "whole": workaround.whole if workaround else "",
        "price": workaround.price if workaround else None,
        "seconds": round(time.monotonic() - start, 1),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="*", default=sorted(PROGRAMS), help="names; default all")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=1, help="programs side by side")
    asked = parser.parse_args(argv)
    written = kept("compiler_faults")
    of_device = written if asked.device == "cpu" else written.setdefault(asked.device, {"programs": {}})

    def ask(name: str) -> tuple[str, dict[str, object]]:
        with tempfile.TemporaryDirectory() as directory:
            return name, outcome(PROGRAMS[name], asked.device, Path(directory))

    with ThreadPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(ask, name) for name in asked.programs]):
            name, found = done.result()
            of_device["programs"][name] = {"report": PROGRAMS[name].source, **found}
            print(name, found, flush=True)
            cores = len(os.sched_getaffinity(0))
            of_device |= {"torch": torch.__version__, "cores": cores, "jobs": asked.jobs}
            keep("compiler_faults", written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
