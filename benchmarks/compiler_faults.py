"""Public reports of wrong code, each bisected to the compiler's decision.

`python -m benchmarks.compiler_faults [--programs NAME ...]`. Every report fails through
AOTInductor on torch 2.13 for the CPU, where eager is right. The healthy programs round differently, and must
not be bisected at all. Writes compiler_faults.json beside this file.
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

import anyio
import torch

from benchmarks.reported_programs import PROGRAMS, RESULTS, Model, Program
from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload
from mcp_server.tools.bisect import Bisected, bisect
from mcp_server.tools.context import Context


def outcome(program: Program, directory: Path) -> dict[str, object]:
    """What `bisect` says of one program, and what it cost."""
    torch.export.save(torch.export.export(Model(program.run), program.inputs), directory / "program.pt2")
    torch.save(list(program.inputs), directory / "inputs.pt")
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
        "workaround": workaround.code if workaround else "",
        "whole": workaround.whole if workaround else "",
        "price": workaround.price if workaround else None,
        "seconds": round(time.monotonic() - start, 1),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="*", default=sorted(PROGRAMS), help="names; default all")
    names = parser.parse_args(argv).programs
    written = json.loads(RESULTS.read_text())
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            written["programs"][name] = {
                "report": PROGRAMS[name].source,
                **outcome(PROGRAMS[name], Path(directory)),
            }
        print(name, written["programs"][name], flush=True)
        written |= {"torch": torch.__version__, "cores": len(os.sched_getaffinity(0))}
        RESULTS.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
