"""Time to a verdict: `diagnose` against the procedure of PyTorch's guide, in turn on the same machine.

`python -m benchmarks.time_to_verdict --needs cpu` runs both on every failing case of the corpus, and prints
runs, compiles, seconds, the ratio, and whether each named the guilty party. `--form` says what `diagnose`
gets (`races.FORMS`): the program, or the package and the failing call's inputs; the guide has the program
in either. With `--jobs N`, N cases run side by side.

The guide's first step, the plain run, begins with an empty compile cache. What that run left there is what
the guide's later steps begin with, and the program under `diagnose` too; with `--cold` that begins with
nothing. Whoever follows the guide is given the benefit of the doubt (`official.names_guilty`). Logs of the
guide and verdicts stay below `corpus/races` in the folder of `tools/made.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.forms import CACHE, Program, Question, program
from benchmarks.corpus.judge import Score, judge
from benchmarks.corpus.score import ask
from benchmarks.corpus.validate import select
from benchmarks.official import LEFT, follow
from benchmarks.races import FORMS, Diagnosis, Race, print_races


def race(
    answer: Answer,
    forms: Sequence[str],
    budget_s: float,
    official_limit_s: float = math.inf,
    *,
    cold: bool = False,
) -> Race | None:
    """The guide first, then `diagnose` in each of `forms`; None where the case has none of them.

    What `diagnose` is asked with is made before either, so that neither finds a colder disk.
    """
    case = program(answer)
    questions = [(form, question) for form in forms if (question := case.question(form))]
    if not questions:
        return None
    home = CACHE / "races" / case.home.name
    shutil.rmtree(home, ignore_errors=True)
    (home / "official").mkdir(parents=True)
    guide = follow(answer, case.path, home / "official", official_limit_s)
    left = home / "official" / LEFT
    if left.exists() and not cold:
        shutil.copytree(left, cache_of(home, "script"))
    found = tuple(_diagnosed(case, form, question, home, budget_s) for form, question in questions)
    return Race(answer.name, answer.needs, guide, found)


def cache_of(home: Path, form: str) -> Path:
    """The compile cache of what `diagnose` runs in that form."""
    return home / f"inductor-{form}"


def _diagnosed(case: Program, form: str, question: Question, home: Path, budget_s: float) -> Diagnosis:
    """The judged verdict on `question` and the seconds until it came."""
    began = time.monotonic()
    verdict = ask(question, budget_s, env={"TORCHINDUCTOR_CACHE_DIR": str(cache_of(home, form))})
    seconds = time.monotonic() - began
    (home / f"verdict-{form}.json").write_text(json.dumps(verdict, indent=1))
    if "error" in verdict:
        score = Score(case.answer.name, form, "", category_right=False, why=verdict["error"])
    else:
        score = judge(case.answer, form, verdict, question.script)
    said = score.why or score.summary
    return Diagnosis(form, score.runs, score.compiles, seconds, score.right, score.confidence, said)


def run(
    answers: Iterable[Answer], jobs: int, one: Callable[[Answer], Race | None], console: Console
) -> Iterator[Race]:
    """The races as they end, `jobs` at a time; one that breaks is told of and costs the others nothing."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(one, answer): answer.name for answer in answers}
        for done in as_completed(waiting):
            name = waiting[done]
            if problem := done.exception():
                console.print(f"{name}: not raced: {problem!r}", highlight=False, markup=False)
            elif (found := done.result()) is None:
                console.print(f"{name}: has no such form", highlight=False)
            else:
                ratios = ", ".join(f"{d.form} {found.ratio(d):.1f}" for d in found.diagnoses)
                console.print(f"{name}: ratio {ratios}", highlight=False)
                yield found


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--needs", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--form", nargs="+", choices=tuple(FORMS), default=list(FORMS))
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side")
    parser.add_argument("--budget-s", type=float, default=300)
    parser.add_argument("--official-limit-s", type=float, default=math.inf, help="give the guide up after")
    parser.add_argument("--cold", action="store_true", help="the program compiles into an empty cache again")
    parser.add_argument("--json", type=Path, help="write the races there, after each")
    return parser.parse_args(argv)


def main() -> int:
    given = arguments()
    console = Console(width=160 if not sys.stdout.isatty() else None)
    answers = [a for a in select(given.needs, given.cases) if a.outcome == "fault"]

    def one(answer: Answer) -> Race | None:
        return race(answer, given.form, given.budget_s, given.official_limit_s, cold=given.cold)

    races: list[Race] = []
    for found in run(answers, given.jobs, one, console):
        races = sorted([*races, found], key=lambda known: known.case)
        if given.json:  # after each case: one that takes long must not cost the others
            given.json.write_text(json.dumps([asdict(known) for known in races], indent=1))
    if races:
        print_races(races, console)
        load = os.getloadavg()[1]
        start = "an empty cache" if given.cold else "the compile cache that the program's plain run left"
        console.print(f"script: the program begins with {start}", highlight=False)
        console.print(f"{given.jobs} side by side on {os.cpu_count()} cores, load of 5 minutes {load:.1f}")
    return 0 if races else 1


if __name__ == "__main__":
    sys.exit(main())
