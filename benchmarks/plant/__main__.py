"""`python -m benchmarks.plant --seed 7 --count 200 [--forms package,script] [--needs cpu|cuda] [--jobs N]
[--only NAME,...] [--json FILE]`: plants that many programs, asks `diagnose` about each, prints how it did.

One seed always gives the same programs. They are written below `--folder`, outside of the repository, with
their packages compiled once for each model and mistake and kept for later runs (`AOTI_DEBUG_PLANT_PACKAGES`).
`--number N` asks about one program of a seed again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.plant.disguises import HEALTHY
from benchmarks.plant.faults import fault_rows
from benchmarks.plant.run import Asked, one, records

Record = dict[str, Any]
JUDGED = ("category_right", "component_right", "element_right", "fix_printed")
CONFIDENCES = ("proven", "likely", "possible")


def share(records: Iterable[Record], name: str) -> str:
    """`12 of 13`, of those that have something to judge."""
    found = [record[name] for record in records if record.get(name) is not None]
    return f"{sum(found)} of {len(found)}"


def judged(kept: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Programs with a fault and healthy ones, without those that could not be planted."""
    asked = [record for record in kept if "outcome" in record]
    return [r for r in asked if r["fault"] not in HEALTHY], [r for r in asked if r["fault"] in HEALTHY]


def right(record: Record) -> bool:
    return bool(
        record["category_right"] and record["component_right"] is not False and not record["false_fields"]
    )


def table(kept: Sequence[Record]) -> list[str]:
    """The summary as a table of Markdown."""
    faults, healthy = judged(kept)
    rows = [
        ("right category", share(faults, "category_right")),
        ("right component, strictly", share(faults, "component_right")),
        ("right element or line", share(faults, "element_right")),
        ("a fix is printed", share(faults, "fix_printed")),
        ("verdicts with a false field", f"{sum(bool(r['false_fields']) for r in faults)} of {len(faults)}"),
    ]
    for confidence in CONFIDENCES:
        said = [r for r in faults if r["outcome"] == "fault" and r["confidence"] == confidence]
        rows.append((f"right when it says `{confidence}`", f"{sum(map(right, said))} of {len(said)}"))
    rows.append(
        ("inconclusive or no verdict", f"{sum(r['outcome'] != 'fault' for r in faults)} of {len(faults)}")
    )
    rows.append(
        ("healthy programs accused", f"{sum(r['outcome'] == 'fault' for r in healthy)} of {len(healthy)}")
    )
    return ["| | |", "| --- | --- |", *(f"| {what} | {how} |" for what, how in rows)]


def line(record: Record) -> str:
    """One program in one line; what was wrong comes first."""
    if "outcome" not in record:
        return f"---- {record['number']} {record['fault']}: not planted: {'; '.join(record['refused'])[:300]}"
    marks = "".join("·" if record[name] is None else "✓" if record[name] else "✗" for name in JUDGED)
    name = f"{record['number']} {record['fault']} {record['model']} [{record['form']}]"
    said = f"{record['outcome']}/{record['category']}/{record['confidence']}"
    false = f" FALSE: {'; '.join(record['false_fields'])}" if record["false_fields"] else ""
    return f"{marks} {name} seen: {record['seen'][:60]} | {said} | {record['summary'][:200]}{false}"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument(
        "--number", type=int, action="append", help="only this program of the seed; repeatable"
    )
    parser.add_argument("--forms", default="package,script")
    parser.add_argument("--needs", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="only these faults, with commas between")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "planted")
    parser.add_argument("--json", type=Path, help="write what is judged there, after each program")
    given = parser.parse_args(argv)
    given.only = tuple(name for name in given.only.split(",") if name)
    unknown = [name for name in given.only if name not in HEALTHY and name not in fault_rows()]
    if unknown:
        parser.error(f"no fault is called {unknown[0]}; there are {', '.join([*fault_rows(), *HEALTHY])}")
    return given


def main() -> int:
    given = arguments()
    torch.set_num_threads(1)
    asked = Asked(given.seed, tuple(given.forms.split(",")), given.only, given.needs, given.folder)
    numbers = given.number or range(given.count)
    kept: list[Record] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for record in records(pool.map(lambda number: one(asked, number), numbers)):
            print(line(record), flush=True)
            kept.append(record)
            if given.json:
                made = {"seed": given.seed, "torch": torch.__version__, "programs": kept}
                given.json.write_text(json.dumps(made, indent=1) + "\n")
    print("\n".join(table(kept)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
