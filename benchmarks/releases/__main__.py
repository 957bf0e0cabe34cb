"""Tries the product with another torch: `python -m benchmarks.releases PYTHON [--only AREA…]`.

Compiles the zoo with the torch of PYTHON, reads, rebuilds and runs it, takes every kind of step, diagnoses
bad calls and failing programs, provokes every error of `provoke`, and compares the flag table. Prints a line
for each thing tried; `--keep` writes what held to `benchmarks/results.json`, and `--table` writes the table
of docs/releases.md from there.

| torch | differs | how it is met |
|---|---|---|
| 2.8 | no `aoti_torch_is_defined`, no `aoti_torch_get_layout` | weak symbols in runtime.cpp |
| 2.10.0 | a load needs `torch._inductor.codecache`, which it does not import | the programs here import it |
| up to 2.12 | a shim that fails prints `Exception in aoti_torch` | runtime.cpp asks before it looks |
| 2.13.0+cpu | a package does not need libtorch.so, as others do | link_command names no library |
| older package (2.8, 2.13) in a newer torch | rebuilt and run, bit-identical | nothing to do |
| newer package (2.13, 2.15) in an older torch | the wrapper does not compile | refused, with the reason |
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.releases.checks import Steps, Texts, scripts
from benchmarks.releases.flags import Flags
from benchmarks.releases.report import AREAS, MARKED, PAGE, Area, Tried, keep, section
from benchmarks.releases.trial import Outcome, Packages, Release, Trials


def trials(release: Release, area: str) -> Trials:
    """What is tried in one area."""
    makers: dict[str, Callable[[], Trials]] = {
        "packages": lambda: Packages(release).trials(),
        "steps": lambda: Steps(release).trials(),
        "scripts": lambda: scripts(release),
        "texts": lambda: Texts(release).trials(),
        "flags": lambda: Flags(release).trials(),
    }
    return makers[area]()


def tried(trial: Trials) -> dict[str, Outcome]:
    """The outcome of each trial; an exception counts as one."""
    outcomes = {}
    for name, attempt in trial.items():
        try:
            outcomes[name] = attempt()
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"[:600]
        print(f"{'FAILS' if outcomes[name] else 'holds'} {name} {outcomes[name]}".rstrip(), flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", type=Path, nargs="?", help="an interpreter that has the torch to try")
    parser.add_argument("--directory", type=Path, help="keeps the packages")
    parser.add_argument("--only", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--keep", action="store_true", help="write what held to benchmarks/results.json")
    parser.add_argument("--table", action="store_true", help="write the table of docs/releases.md from there")
    given = parser.parse_args()
    if given.table or given.python is None:
        PAGE.write_text(MARKED.sub(lambda _found: section(), PAGE.read_text()))
        print(section())
        return 0
    release = Release(given.python, given.directory or Path(tempfile.mkdtemp()))
    print(f"torch {release.torch}, Python {release.python_version}", flush=True)
    areas = {area: Area.of(tried(trials(release, area))) for area in given.only}
    if given.keep:
        print(keep(Tried(release.torch, release.python_version, areas)))
    return int(any(area.failed for area in areas.values()))


if __name__ == "__main__":
    sys.exit(main())
