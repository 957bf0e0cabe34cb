"""Memory and time of reading many observations: `python -m benchmarks.observations PACKAGE [--count 100000]`.

Writes a report as the worker does, with COUNT arguments of the launches of PACKAGE (a .pt2 of AOTInductor),
and reads it in a process of its own, as `dump_kernel_io` does: first bad value, table, JSON, and the 24
launches that are shown. Prints the process's peak memory beyond that before it began, and processor seconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mcp_server.package.archive import open_package
from mcp_server.package.view import PackageView
from mcp_server.tools.context import Context, stream_events
from mcp_server.tools.kernel_io import Choice, overview
from mcp_server.tools.probe_backend import find_bounds, read_launches
from mcp_server.worker.events import Argument
from mcp_server.worker.report import Report

SEEN: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "shape": [256, 512],
    "stride": [512, 1],
    "storage_offset": 0,
    "contiguous": True,
    "alignment": 64,
    "bytes": 524288,
    "pointer": 140214332080192,
    "checksum": "0123456789abcdef01234567",
    "nan": 0,
    "inf": 0,
    "zero": 12,
    "min": -1.5,
    "max": 2.25,
    "mean": 0.03125,
    "non_finite": None,
    "outside": None,
    "saved": None,
}


def write_report(path: Path, model: PackageView, count: int) -> None:
    """`count` events `argument`: runs of the package's launches, two arguments each."""
    report = Report(str(path))
    launches = model.wrapper.launches
    for number in range(count // 2):
        launch = launches[number % len(launches)]
        where = {"launch": launch.index, "sequence": number, "run": 0, "kernel": launch.kernel, "runner": 1}
        for phase, role in (("before", "read"), ("after", "written")):
            about = {"phase": phase, "name": f"buf_{role}", "parameter": "x", "role": role}
            report.event(Argument(**{**SEEN, **where, **about}))


def model_of(package: Path) -> PackageView:
    opened = open_package(package)
    return PackageView(opened)


def peak() -> int:
    """Bytes of the largest extent of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read(package: Path, directory: Path) -> None:
    """Read the report of `directory` and tell what that cost. Runs in a process of its own."""
    model = model_of(package)
    bounds = find_bounds(model)
    context = Context(directory, Path(sys.executable))
    before, start = peak(), time.process_time()
    events = stream_events(directory / "report.jsonl", Argument)
    found = overview(read_launches(context, events, model, bounds), model, Choice(), directory, 24)
    seconds = time.process_time() - start
    more = (peak() - before) / 2**20
    print(f"{found.count} launches read in {seconds:.2f} s of processor time with {more:.0f} MiB more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_report(directory / "report.jsonl", model_of(asked.package), asked.count)
        print(f"{asked.count} observations, {(directory / 'report.jsonl').stat().st_size / 2**20:.0f} MiB")
        reader = multiprocessing.get_context("spawn").Process(target=read, args=(asked.package, directory))
        reader.start()
        reader.join()
        sys.exit(reader.exitcode)


if __name__ == "__main__":
    main()
