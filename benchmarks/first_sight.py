"""Counts first verdicts on programs that no author of the tool had seen: `python -m benchmarks.first_sight`.

`first_sight.csv` counts the verdicts that say and miss the same. Each program was asked about once in each
form, at a frozen commit. The programs and whole verdicts are in the history of the repository, up to commit
3f314473.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROWS = Path(__file__).with_suffix(".csv")
LEVELS = ("proven", "likely", "possible")


@dataclass(frozen=True)
class First:
    """A first verdict beside the answer. None where there is nothing to judge."""

    batch: int
    form: str
    category_right: bool
    outcome: str = ""
    category: str = ""
    confidence: str = ""
    component_right: bool | None = None
    line_right: bool | None = None
    origin_right: bool | None = None
    mechanism_right: bool | None = None

    @property
    def right(self) -> bool:
        """Category and component, as far as the answer names one."""
        return self.category_right and self.component_right is not False


JUDGED = {"yes": True, "no": False, "": None}


def first_verdicts() -> list[First]:
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        programs = int(row.pop("programs"))
        found += [_first(row)] * programs
    return found


def _first(row: dict[str, str]) -> First:
    judged = {name: JUDGED[row.pop(name)] for name in list(row) if name.endswith("_right")}
    right = judged.pop("category_right")
    assert right is not None, "each verdict has a category, right or wrong"
    return First(batch=int(row.pop("batch")), category_right=right, **row, **judged)  # type: ignore[arg-type]


def share(flags: Iterable[bool | None]) -> str:
    """`12 of 13`, or a dash where nothing was judged."""
    told = [flag for flag in flags if flag is not None]
    return f"{sum(told)} of {len(told)}" if told else "–"


def reliability(found: list[First]) -> str:
    """Of the verdicts with each category and confidence, how many name category and component."""
    said: dict[str, list[First]] = {}
    for each in found:
        if each.confidence:  # a call that ended in an error has none
            said.setdefault(each.category if each.outcome == "fault" else each.outcome, []).append(each)
    lines = ["| verdict | proven | likely | possible |", "| --- | --- | --- | --- |"]
    for name, of_name in sorted(said.items()):
        cells = [share(each.right for each in of_name if each.confidence == level) for level in LEVELS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def batches(found: list[First]) -> str:
    """What is right in each batch, by form."""
    lines = ["| batch | form | category | component | model line | `proven` | `likely` |", "| - " * 7 + "|"]
    for batch in sorted({each.batch for each in found}):
        for form in ("script", "package"):
            rows = [each for each in found if (each.batch, each.form) == (batch, form)]
            sure = [
                share(each.right for each in rows if each.outcome == "fault" and each.confidence == level)
                for level in LEVELS[:2]
            ]
            judged = [
                share(each.category_right for each in rows),
                share(each.component_right for each in rows),
                share(each.line_right for each in rows),
            ]
            lines.append(f"| {batch} | {form} | {' | '.join((*judged, *sure))} |")
    return "\n".join(lines)


def main() -> None:
    found = first_verdicts()
    print(reliability(found), batches(found), sep="\n\n")


if __name__ == "__main__":
    main()
