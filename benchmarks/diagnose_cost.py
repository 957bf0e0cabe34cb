"""What `diagnose` and `check_devices` cost beside one plain run of the same call.

`python -m benchmarks.diagnose_cost PACKAGE INPUTS [REPEATS [STEP...]]` prints medians of wall-clock seconds:
importing torch, one plain run in the worker, `check_devices` and `diagnose` (or the steps that are named),
with their ratios. The demo's package and inputs are made by `make demo`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.interpreter import default_python
from mcp_server.model import PackageWorkload
from mcp_server.tools.check_devices import check_devices
from mcp_server.tools.context import Context
from mcp_server.tools.requests import run_request

Step = Callable[[Context, PackageWorkload], Awaitable[object]]


async def plain(context: Context, workload: PackageWorkload) -> object:
    """One run of the call, as it is."""
    return await context.worker("run", run_request(workload))


STEPS: dict[str, Step] = {"plain run": plain, "check_devices": check_devices, "diagnose": diagnose}


def seconds_of(step: Step, workload: PackageWorkload) -> float:
    """Wall-clock seconds of one step in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        context = Context(Path(directory), default_python())
        start = time.monotonic()
        anyio.run(step, context, workload)
        return time.monotonic() - start


def import_seconds() -> float:
    """Wall-clock seconds of a Python that only imports torch."""
    start = time.monotonic()
    subprocess.run([str(default_python()), "-c", "import torch"], check=True)
    return time.monotonic() - start


def main(package: str, inputs: str, repeats: str = "3", *chosen: str) -> None:
    workload = PackageWorkload(package=Path(package).resolve(), inputs=Path(inputs).resolve())
    rounds = range(int(repeats))
    imported = statistics.median(import_seconds() for _ in rounds)
    print(f"import torch   {imported:6.2f} s")
    medians = {
        name: statistics.median(seconds_of(STEPS[name], workload) for _ in rounds)
        for name in dict.fromkeys(["plain run", *(chosen or STEPS)])
    }
    for name, seconds in medians.items():
        print(f"{name:14} {seconds:6.2f} s  {seconds / medians['plain run']:5.2f} x a plain run")
    if "check_devices" in medians:
        print(f"check_devices beyond the import: {medians['check_devices'] - imported:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
