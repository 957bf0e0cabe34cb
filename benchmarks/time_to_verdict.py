"""Time to a verdict: `diagnose` against the procedure of PyTorch's guide, in turn on the same machine.

`python -m benchmarks.time_to_verdict --needs cpu` runs both on every failing case of the corpus, each with a
compile cache of its own that starts empty, and prints runs, compiles, seconds, the ratio, and whether each
named the guilty party. Whoever follows the guide is given the benefit of the doubt (`official.names_guilty`).
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.forms import CACHE, Program, program
from benchmarks.corpus.judge import Score, judge
from benchmarks.corpus.score import ask, mark
from benchmarks.corpus.validate import CASES, select
from benchmarks.official import Procedure, follow

TARGETS = {"cpu": 5.0, "cuda": 10.0}
RUNS_BEYOND_CAPTURE = 3


@dataclass(frozen=True)
class Race:
    """Both on one case; seconds of wall-clock time. A program's every run compiles once.

    `official_s` is for every step of the guide, `official_named_s` until a step named the guilty party.
    """

    case: str
    needs: str
    official_runs: int
    official_s: float
    official_named: str | None
    official_named_s: float | None
    official_cut: bool
    diagnose_runs: int
    diagnose_compiles: int
    diagnose_s: float
    diagnose_named: bool
    confidence: str

    @property
    def ratio(self) -> float:
        """All of the guide against `diagnose`."""
        return self.official_s / self.diagnose_s

    @property
    def lucky_ratio(self) -> float:
        """The guide given up at the first step that named the guilty party, which no one knows beforehand."""
        return (self.official_named_s or self.official_s) / self.diagnose_s


def race(answer: Answer, budget_s: float, official_limit_s: float = math.inf) -> Race:
    """The guide first, then `diagnose`."""
    case = program(answer, CASES)
    home = CACHE / "races" / case.home.name
    shutil.rmtree(home, ignore_errors=True)
    (home / "official").mkdir(parents=True)
    official = follow(answer, case.path, home / "official", official_limit_s)
    score, seconds = _diagnosed(case, home, budget_s)
    return _race(answer, official, score, seconds)


def _diagnosed(case: Program, home: Path, budget_s: float) -> tuple[Score, float]:
    """The judged verdict on the script and the seconds until it came."""
    question = case.question("script")
    assert question is not None, "every case has a script"
    began = time.monotonic()
    verdict = ask(question, budget_s, env={"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")})
    seconds = time.monotonic() - began
    (home / "verdict.json").write_text(json.dumps(verdict, indent=1))
    if "error" in verdict:
        return Score(case.answer.name, "script", "", category_right=False, why=verdict["error"]), seconds
    return judge(case.answer, "script", verdict, case.path), seconds


def _race(answer: Answer, official: Procedure, score: Score, seconds: float) -> Race:
    return Race(
        case=answer.name,
        needs=answer.needs,
        official_runs=official.runs,
        official_s=official.wall_s,
        official_named=official.named_by,
        official_named_s=official.named_s,
        official_cut=official.cut,
        diagnose_runs=score.runs,
        diagnose_compiles=score.compiles,
        diagnose_s=seconds,
        diagnose_named=score.right,
        confidence=score.confidence,
    )


def print_races(races: Sequence[Race], console: Console) -> None:
    """A row per case, then the medians."""
    table = Table(
        *("case", "guide: runs", "s", "named by", "after s"),
        *("diagnose: runs", "compiles", "s", "named", "sure", "ratio", "to the name"),
    )
    for r in races:
        more = "≥ " if r.official_cut else ""
        after = f"{r.official_named_s:.0f}" if r.official_named_s is not None else "–"
        guide = (str(r.official_runs), f"{more}{r.official_s:.0f}", r.official_named or "–", after)
        ours = (str(r.diagnose_runs), str(r.diagnose_compiles), f"{r.diagnose_s:.0f}", mark(r.diagnose_named))
        ratios = (f"{more}{r.ratio:.1f}", f"{r.lucky_ratio:.1f}")
        table.add_row(r.case, *guide, *ours, r.confidence, *ratios)
    console.print(table)
    for line in summary(races):
        console.print(line)


def summary(races: Sequence[Race]) -> list[str]:
    """Medians against their targets."""
    lines = []
    for needs, target in TARGETS.items():
        found = [r for r in races if r.needs == needs]
        if found:
            ratio = statistics.median(r.ratio for r in found)
            lucky = statistics.median(r.lucky_ratio for r in found)
            lines.append(
                f"{needs}: median ratio {ratio:.1f} (target {target:.0f}), {len(found)} cases; "
                f"{lucky:.1f} where the guide ends at the step that names the guilty party"
            )
    beyond = statistics.median(r.diagnose_runs - 1 for r in races)
    named = sum(r.official_named is not None for r in races), sum(r.diagnose_named for r in races)
    lines.append(f"runs beyond the capture: median {beyond:.0f} (target {RUNS_BEYOND_CAPTURE})")
    return [*lines, f"guilty party named: guide {named[0]}, diagnose {named[1]} of {len(races)}"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--needs", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--budget-s", type=float, default=300)
    parser.add_argument("--official-limit-s", type=float, default=math.inf, help="give the guide up after")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    console = Console(width=150 if not sys.stdout.isatty() else None)
    races = []
    for answer in select(CASES, given.needs, given.cases):
        if answer.outcome == "fault":
            races.append(race(answer, given.budget_s, given.official_limit_s))
            console.print(f"{races[-1].case}: ratio {races[-1].ratio:.1f}", highlight=False)
            if given.json:  # after each case: one that takes long must not cost the others
                given.json.write_text(json.dumps([asdict(r) for r in races], indent=1))
    if races:
        print_races(races, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
