"""How much of packages `decompile` reads, and whether what it writes agrees with them.

`python -m benchmarks.decompiled PACKAGES` reads, runs and compares each NAME.pt2 of a folder that has
NAME.inputs.pt beside it. The figures are kept in results.json.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from benchmarks import keep
from mcp_server.model import PackageWorkload
from mcp_server.package.launches import shim_operator
from mcp_server.package.pytorch.program import PytorchProgram, write_program
from mcp_server.package.view import PackageView, view_package
from mcp_server.runtime.context import Context
from mcp_server.tools.decompile import decompile
from mcp_server.worker.decompiled import overload_of, schema_of
from mcp_server.worker.events import Schema

OURS = ("cpp", "triton")
SHORT = (5, 15)  # lines of a function


def ran(package: Path, directory: Path, imports: Sequence[str]) -> dict[str, Any]:
    """What the command says of one package and its inputs."""
    inputs = package.with_name(f"{package.stem}.inputs.pt")
    workload = PackageWorkload(package=package, inputs=inputs, extra_imports=list(imports))
    context = Context(directory=directory, python=Path(sys.executable))
    directory.mkdir()
    found = anyio.run(lambda: decompile(context, workload, out=None, launches=()))
    return {
        "outcome": found.outcome,
        "launches": Counter(each.agreement for each in found.by_launch),
        "different": [each.launch for each in found.by_launch if each.agreement == "different"],
    }


def share(programs: Iterable[PytorchProgram]) -> dict[str, Any]:
    """Counts of launches of generated kernels and operators, and of those read; lines per kernel."""
    launches = [each for program in programs for each in program.launches]
    kernels = [each for each in launches if each.kind in OURS]
    lines = sorted(len(each.lines) for each in kernels if not each.not_read)
    whys = Counter(each.not_read.partition(" if ")[0] for each in launches if each.not_read)
    return {
        "kernels": len(kernels),
        "kernels_read": len(lines),
        "other_launches": len(launches) - len(kernels),
        "other_launches_read": sum(not each.not_read for each in launches if each.kind not in OURS),
        "lines_median": statistics.median(lines) if lines else 0,
        "lines_most": max(lines, default=0),
        **{f"at_most_{most}_lines": sum(each <= most for each in lines) for most in SHORT},
        "not_read": dict(whys.most_common(8)),
    }


def read(folders: Iterable[Path]) -> list[PytorchProgram]:
    return [write_program(view, schemas_of(view)) for view in map(view_package, folders)]


def schemas_of(view: PackageView) -> dict[str, Schema]:
    shims = {shim_operator(each.callee) for each in view.wrapper.launches if each.kind not in OURS}
    return {shim: schema_of(shim, *found) for shim in shims if (found := overload_of(shim)) is not None}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path)
    parser.add_argument("--extra-imports", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    inputs = sorted(asked.packages.glob("*.inputs.pt"))
    packages = [each.with_name(each.name.replace(".inputs.pt", ".pt2")) for each in inputs]
    found = {}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(asked.jobs) as pool:
        folders = [Path(folder) / each.stem for each in packages]
        for each, one in zip(
            packages, pool.map(partial(ran, imports=asked.extra_imports), packages, folders), strict=True
        ):
            found[each.stem] = one
            print(
                each.stem,
                one["outcome"],
                dict(one["launches"]),
                one["different"],
                file=sys.stderr,
                flush=True,
            )
    launches: Counter[str] = sum((each["launches"] for each in found.values()), Counter())
    results: dict[str, Any] = {
        "packages": len(found),
        "outcomes": Counter(each["outcome"] for each in found.values()),
        "launches_on_their_own_inputs": launches,
        "run": share(read(packages)),
    }
    keep("decompiled", results)
    print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
