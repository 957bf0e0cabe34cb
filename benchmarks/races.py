"""What a race of `diagnose` against PyTorch's guide found, and the table that tells it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.corpus.score import mark
from benchmarks.official import Procedure

TARGETS = {"cpu": 5.0, "cuda": 10.0}
RUNS_BEYOND_CAPTURE = 3
FORMS = {
    "script": "`diagnose` gets the program and runs it once under its hook; the program's own compile counts",
    "package": "`diagnose` gets the package and the inputs of the failing call, and no source; making "
    "both is not in its seconds: whoever has them has compiled and run the program once before",
}
GUIDE = "guide: the program itself, run and compiled anew at every step, in either form"


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` made of a case in one form, in `seconds` of wall-clock time; `said` is its summary."""

    form: str
    runs: int
    compiles: int
    seconds: float
    named: bool
    confidence: str
    said: str


@dataclass(frozen=True)
class Race:
    """The guide once, and `diagnose` in each form that the case has."""

    case: str
    needs: str
    guide: Procedure
    diagnoses: tuple[Diagnosis, ...]

    @property
    def plain_s(self) -> float:
        """Seconds of the guide's first step, the plain run."""
        return self.guide.steps["plain"]

    def ratio(self, found: Diagnosis) -> float:
        """All of the guide against `diagnose`."""
        return self.guide.wall_s / found.seconds

    def spared_ratio(self, found: Diagnosis) -> float:
        """The guide without its plain run, which the user has made already as well."""
        return (self.guide.wall_s - self.plain_s) / found.seconds

    def lucky_ratio(self, found: Diagnosis) -> float:
        """The guide given up at the first step that named the guilty party, which no one knows beforehand."""
        return (self.guide.named_s or self.guide.wall_s) / found.seconds


def read_races(data: Sequence[dict[str, Any]]) -> list[Race]:
    """Races from what `dataclasses.asdict` made of them, and JSON after it."""
    return [
        Race(
            case=one["case"],
            needs=one["needs"],
            guide=Procedure(**one["guide"]),
            diagnoses=tuple(Diagnosis(**found) for found in one["diagnoses"]),
        )
        for one in data
    ]


def print_races(races: Sequence[Race], console: Console) -> None:
    """A row for each case and form, what the forms are, then the medians."""
    table = Table(
        *("case", "guide: runs", "s", "named by", "after s"),
        *("form", "runs", "compiles", "s", "named", "sure", "ratio", "to the name"),
    )
    for race in races:
        for found in race.diagnoses:
            table.add_row(*_row(race, found))
    console.print(table)
    for line in [*_meanings(races), *summary(races)]:
        console.print(line, highlight=False)


def _row(race: Race, found: Diagnosis) -> Iterator[str]:
    guide = race.guide
    more = "≥ " if guide.cut else ""
    yield from (race.case, str(guide.runs), f"{more}{guide.wall_s:.0f}", guide.named_by or "–")
    yield f"{guide.named_s:.0f}" if guide.named_s is not None else "–"
    yield from (found.form, str(found.runs), str(found.compiles), f"{found.seconds:.0f}")
    yield from (mark(found.named), found.confidence or "–")
    yield from (f"{more}{race.ratio(found):.1f}", f"{race.lucky_ratio(found):.1f}")


def _meanings(races: Sequence[Race]) -> Iterator[str]:
    yield GUIDE
    seen = {found.form for race in races for found in race.diagnoses}
    yield from (f"{form}: {meaning}" for form, meaning in FORMS.items() if form in seen)


def summary(races: Sequence[Race]) -> list[str]:
    """Medians against their targets, for each kind of machine and form."""
    lines: list[str] = []
    for needs, target in TARGETS.items():
        for form in FORMS:
            raced = [(r, d) for r in races if r.needs == needs for d in r.diagnoses if d.form == form]
            if raced:
                lines += _medians(f"{needs}, {form}", target, raced)
    guide = sum(race.guide.named_by is not None for race in races)
    return [*lines, f"the guide named the guilty party in {guide} of {len(races)} cases"]


def _medians(what: str, target: float, raced: Sequence[tuple[Race, Diagnosis]]) -> Iterator[str]:
    ratio = statistics.median(race.ratio(found) for race, found in raced)
    spared = statistics.median(race.spared_ratio(found) for race, found in raced)
    lucky = statistics.median(race.lucky_ratio(found) for race, found in raced)
    verdict = f"target {target:.0f}: {'reached' if ratio >= target else 'MISSED'}"
    yield (
        f"{what}: median ratio {ratio:.1f} ({verdict}), "
        f"guilty party named in {sum(found.named for _, found in raced)} of {len(raced)} cases"
    )
    yield f"  {spared:.1f} where the guide is spared its plain run, {lucky:.1f} where it ends at the name"
    if raced[0][1].form == "script":
        beyond = statistics.median(found.runs - 1 for _, found in raced)
        yield f"  runs beyond the capture: median {beyond:.0f} (target {RUNS_BEYOND_CAPTURE})"
