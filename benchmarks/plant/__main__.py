"""`python -m benchmarks.plant --seed 7 --count 200 [--forms package,script] [--needs cpu|cuda] [--jobs N]
[--only NAME,...] [--json FILE] [--keep FILE ...]` plants that many programs, asks `diagnose` about each, and
prints the results.

One seed always gives the same programs. They are written below `--folder`, outside of the repository. Their
packages are compiled once for each model and mistake, and kept (`AOTI_DEBUG_PLANT_PACKAGES`).
`--number N` asks about one program of a seed again. `--keep FILE ...` asks nothing: it takes what runs with
`--json FILE` wrote, keeps it as `planted` in benchmarks/results.json, and prints the table of the page.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks import keep, kept
from benchmarks.plant.disguises import HEALTHY
from benchmarks.plant.faults import fault_rows
from benchmarks.plant.run import Asked, one, records

Record = dict[str, Any]
JUDGED = ("category_right", "component_right", "element_named", "line_named", "fix_printed", "fix_right")
MARKS = {
    "category_right": "right category",
    "component_right": "right component, strictly",
    "element_right": "right element or line",
    "element_named": "right element",
    "line_named": "right line",
    "fix_printed": "a fix is printed",
    "fix_right": "the printed fix, applied, removes the failure",
}
CONFIDENCES = ("proven", "likely", "possible")


def share(records: Iterable[Record], name: str) -> str:
    """`12 of 13`, counting only records that have the field."""
    found = [record[name] for record in records if record.get(name) is not None]
    return f"{sum(found)} of {len(found)}"


def apart(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Programs with a fault, and healthy ones, without those that could not be planted."""
    asked = [record for record in records if "outcome" in record]
    return [r for r in asked if r["fault"] not in HEALTHY], [r for r in asked if r["fault"] in HEALTHY]


def right(record: Record) -> bool:
    return bool(
        record["category_right"] and record["component_right"] is not False and not record["false_fields"]
    )


def table(records: Sequence[Record]) -> list[str]:
    """The summary as a Markdown table."""
    faults, healthy = apart(records)
    marks = [name for name in MARKS if any(r.get(name) is not None for r in faults)]
    rows = [
        *((MARKS[name], share(faults, name)) for name in marks),
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


WORDS = ("program", "fault", "model", "form", "outcome", "category", "confidence", "marks")
SAME = (
    "fault",
    "outcome",
    "category",
    "confidence",
    "marks",
)  # programs that agree in these are counted together
SIGNS: dict[bool | None, str] = {None: "-", True: "y", False: "n"}
ALL_MARKS = (*MARKS, "false_fields")


def as_row(record: Record, words: Sequence[str]) -> str:
    """A judged program as a line of words: `61128/3 bounds contrastive script no_fault - likely y------n`."""
    marks = "".join(SIGNS[record.get(name)] for name in MARKS) + SIGNS[bool(record["false_fields"])]
    return " ".join(str({**record, "marks": marks}[word] or "-").replace(" ", "_") for word in words)


def of_row(row: str, words: Sequence[str]) -> Record:
    """The program of such a line, with what tables need."""
    found: Record = dict(zip(words, row.split(), strict=True))
    values = {sign: mark for mark, sign in SIGNS.items()}
    return found | dict(zip(ALL_MARKS, (values[sign] for sign in found["marks"]), strict=True))


def faultless(record: Record) -> bool:
    """Whether nothing judged is wrong, and a fault, if there is one, was found."""
    if record["fault"] in HEALTHY:
        return bool(record["outcome"] != "fault")
    wrong = any(record.get(name) is False for name in MARKS)
    return not wrong and not record["false_fields"] and record["outcome"] == "fault"


def as_kept(records: Sequence[Record]) -> dict[str, Any]:
    """Each program with something wrong as a row, and counts of the others by kind."""
    wrong = [as_row(each, WORDS) for each in records if not faultless(each)]
    right = Counter(as_row(each, SAME) for each in records if faultless(each))
    return {"with_something_wrong": wrong, "others": dict(sorted(right.items()))}


def of_kept(found: Record) -> list[Record]:
    """The programs from what `as_kept` gave."""
    counted = [of_row(row, SAME) for row, count in found["others"].items() for _ in range(count)]
    return [*(of_row(row, WORDS) for row in found["with_something_wrong"]), *counted]


def keep_files(files: Sequence[Path], needs: str) -> list[Record]:
    """Keep the judged programs of the files in place of those kept before, and return them."""
    runs = [json.loads(file.read_text()) for file in files]
    judged = [
        {**each, "program": f"{run['seed']}/{each['number']}"}
        for run in runs
        for each in run["programs"]
        if "outcome" in each
    ]
    planted = {str(run["seed"]): len(run["programs"]) for run in runs}
    made = {"torch": runs[0]["torch"], "numbers_of_seeds": planted, **as_kept(judged)}
    keep("planted", {**kept("planted"), needs: made})
    return of_kept(made)


def line(record: Record) -> str:
    """One program in one line, with what was wrong first."""
    if "outcome" not in record:
        return f"---- {record['number']} {record['fault']}: not planted: {'; '.join(record['refused'])[:300]}"
    marks = "".join("·" if record.get(name) is None else "✓" if record[name] else "✗" for name in JUDGED)
    name = f"{record['number']} {record['fault']} {record['model']} [{record['form']}]"
    said = f"{record['outcome']}/{record['category']}/{record['confidence']}"
    false = f" FALSE: {'; '.join(record['false_fields'])}" if record["false_fields"] else ""
    return f"{marks} {name} seen: {record['seen'][:60]} | {said} | {record['summary'][:200]}{false}"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
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
    parser.add_argument("--keep", type=Path, nargs="+", default=[], help="files of runs with --json")
    given = parser.parse_args(argv)
    given.only = tuple(name for name in given.only.split(",") if name)
    unknown = [name for name in given.only if name not in HEALTHY and name not in fault_rows()]
    if unknown:
        parser.error(f"no fault is called {unknown[0]}; there are {', '.join([*fault_rows(), *HEALTHY])}")
    return given


def main() -> int:
    given = arguments()
    if given.keep:
        print("\n".join(table(keep_files(given.keep, given.needs))))
        return 0
    torch.set_num_threads(1)
    asked = Asked(given.seed, tuple(given.forms.split(",")), given.only, given.needs, given.folder)
    numbers = given.number or range(given.count)
    judged: list[Record] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for record in records(pool.map(lambda number: one(asked, number), numbers)):
            print(line(record), flush=True)
            judged.append(record)
            if given.json:
                made = {"seed": given.seed, "torch": torch.__version__, "programs": judged}
                given.json.write_text(json.dumps(made, indent=1) + "\n")
    print("\n".join(table(judged)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
