"""What a package's verdict costs through a server that stays: its first call, and those after it.

`python -m benchmarks.warm_worker [--rounds N] [--package FILE --inputs FILE]` measures in turn, so that load
meets all alike, and prints medians of wall-clock seconds:

- plain: the call as a user makes it (import torch, `aoti_load_package`, call), which fails;
- loader: the same through `AOTIModelPackageLoader` alone, with the import;
- first, later: `diagnose` of the call through MCP in a fresh server, and again in that server.

Limits: a later call 0.3 x plain and 0.7 x loader. The figures go into `benchmarks/results.json`. By
default the demo's package and bad batch are taken; `make demo` makes them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import torch
from mcp import Client, StdioServerParameters

from benchmarks import keep

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / ".cache" / "demo"
LIMITS = {"plain": 0.3, "loader": 0.7}
LATER_CALLS = 3

PLAIN = """
import sys, torch
model = torch._inductor.aoti_load_package(sys.argv[1])
model(*torch.load(sys.argv[2], weights_only=True))
"""
LOADER = """
import sys, torch
loader = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], "model", False, 1, -1)
loader.run(list(torch.load(sys.argv[2], weights_only=True)))
"""


def program(code: str, package: Path, inputs: Path) -> float:
    """Seconds of a Python with this code; a failure is expected, except of an import."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, str(package), str(inputs)], capture_output=True, text=True, check=False
    )
    if "ImportError" in done.stderr or "AttributeError" in done.stderr:
        raise SystemExit(done.stderr)
    return time.monotonic() - began


async def served(package: Path, inputs: Path) -> list[float]:
    """Seconds of each `diagnose` through one fresh server."""
    with tempfile.TemporaryDirectory() as state:
        env = {**os.environ, "AOTI_DEBUG_STATE": f"{state}/state"}
        server = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server"], cwd=ROOT, env=env)
        async with Client(server) as client:
            return [await _diagnosed(client, package, inputs) for _ in range(1 + LATER_CALLS)]


async def _diagnosed(client: Client, package: Path, inputs: Path) -> float:
    began = time.monotonic()
    call = {"package": str(package), "inputs": str(inputs), "python": sys.executable, "wait_s": 45}
    answer = (await client.call_tool("diagnose", call)).structured_content
    seconds = time.monotonic() - began
    if not answer or answer.get("outcome") != "fault" or answer["confidence"] != "proven":
        raise SystemExit(f"no proven verdict: {json.dumps(answer)[:2000]}")
    return seconds


def measured(package: Path, inputs: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds by name, in rounds of all."""
    found: dict[str, list[float]] = {"plain": [], "loader": [], "first": [], "later": []}
    programs: dict[str, Callable[[], float]] = {
        "plain": lambda: program(PLAIN, package, inputs),
        "loader": lambda: program(LOADER, package, inputs),
    }
    for _ in range(rounds):
        for name, run in programs.items():
            found[name].append(run())
        first, *later = anyio.run(served, package, inputs)
        found["first"].append(first)
        found["later"].extend(later)
    return found


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: round(statistics.median(seconds), 3) for name, seconds in found.items()}
    ratios = {name: round(medians["later"] / medians[name], 2) for name in LIMITS}
    return {
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "medians_s": medians,
        "later_by": ratios,
        "limits": LIMITS,
        "seconds": {name: [round(value, 3) for value in values] for name, values in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--package", type=Path, default=DEMO / "ranker.pt2")
    parser.add_argument("--inputs", type=Path, default=DEMO / "bad.pt")
    asked = parser.parse_args()
    told = summary(measured(asked.package.resolve(), asked.inputs.resolve(), asked.rounds))
    keep("warm_worker", told)
    for name, seconds in told["medians_s"].items():
        ratio = (
            f"  a later call is {told['later_by'][name]} x (limit {LIMITS[name]} x)" if name in LIMITS else ""
        )
        print(f"{name:8}{seconds:7.2f} s{ratio}")
    print(f"load {told['load']} on {told['cores']} cores, torch {told['torch']}")


if __name__ == "__main__":
    main()
