"""Scores `diagnose` on the corpus: `python -m benchmarks.corpus.score --needs cpu`.

Prints a row per case and form, the totals against their targets, and the calibration. Exits with 1 when a
target is missed. Answers are read here, after the verdict, and nowhere in the product.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.corpus.answers import HOME, PROGRAMS, Answer
from benchmarks.corpus.forms import CACHE, FORMS, Question, program
from benchmarks.corpus.judge import (
    Score,
    Share,
    calibration,
    defect_shares,
    judge,
    shares,
    summary,
    with_defects,
)
from benchmarks.corpus.validate import ROOT, select

SLACK_S = 120
COMMAND_LINE = "from mcp_server.cli.main import main; main()"


def ask(question: Question, budget_s: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The verdict on `question`, with `env` set for the workload; `{"error": …}` if there is none."""
    argv = [sys.executable, "-c", COMMAND_LINE, "diagnose", *question.arguments]
    argv += ["--budget-s", str(budget_s), "--json"]
    argv += [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
    if "--log" not in question.arguments:
        argv += ["--cwd", str(question.cwd), "--timeout-s", str(budget_s)]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=budget_s + SLACK_S)
    except subprocess.TimeoutExpired:
        return {"error": f"no verdict after {budget_s + SLACK_S:.0f} s"}
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": " ".join(lines[-3:])[:300] or f"exit code {done.returncode}"}
    return verdict


def score_form(answer: Answer, directory: Path, form: str, given: argparse.Namespace) -> Score:
    """Ask about one case in one form, and judge the verdict."""
    nothing = Score(answer.name, form, answer.category or "no_fault")
    case = program(answer, directory)
    question = case.question(form)
    if question is None:
        return replace(nothing, why="the case has no such form")
    verdict = _verdict(question, given, CACHE / "verdicts" / form / f"{case.home.name}.json")
    if "error" in verdict:
        return replace(nothing, category_right=False, why=verdict["error"])
    return with_defects(judge(answer, form, verdict, question.script), answer, verdict)


def _verdict(question: Question, given: argparse.Namespace, kept: Path) -> dict[str, Any]:
    """A new verdict, or with `--kept` the last one."""
    if given.kept and kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    verdict = ask(question, given.budget_s)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(verdict, indent=1))
    return verdict


def run(given: argparse.Namespace, console: Console) -> list[Score]:
    """The scores of every chosen case in every chosen form."""
    jobs = [(answer, directory) for answer, directory in chosen(given)]

    def one(job: tuple[Answer, Path]) -> list[Score]:
        found = [score_form(*job, form, given) for form in given.forms]
        for score in found:
            console.print(_line(score), markup=False, highlight=False)
        return found

    with ThreadPoolExecutor(given.jobs) as pool:
        return [score for found in pool.map(one, jobs) for score in found]


def chosen(given: argparse.Namespace) -> list[tuple[Answer, Path]]:
    """The programs, or those of `--directory`; with `--third N`, every third of them from the Nth on."""
    directory = given.directory or PROGRAMS
    answers = select(given.needs, given.cases, given.directory or HOME)
    found = [(answer, directory) for answer in answers]
    return found if given.third is None else found[given.third % 3 :: 3]


def _line(score: Score) -> str:
    marks = "".join(mark(flag) for flag in _flags(score))
    got = f"{score.outcome}/{score.category}/{score.confidence}" if not score.why else score.why
    return f"{marks} {score.case} [{score.form}] {got} | {score.guilty} | {score.summary[:160]}"


def _flags(score: Score) -> tuple[bool | None, ...]:
    """What was judged, in the order of the table's columns."""
    return (
        score.category_right,
        score.guilty_right,
        score.line_right,
        score.bystander_spared,
        score.causes_in_order,
    )


def mark(flag: bool | None) -> str:
    """One character: right, wrong, or nothing to judge."""
    return "·" if flag is None else "✓" if flag else "✗"


def print_scores(scores: list[Score], console: Console) -> None:
    """The table of cases, then the totals."""
    judged = ("cat", "guilty", "line", "spared", "order")
    table = Table("case", "form", "expected", "got", *judged, "confidence", "runs", "s")
    for s in scores:
        got = s.category or s.outcome or s.why
        marks = [mark(flag) for flag in _flags(s)]
        table.add_row(s.case, s.form, s.expected, got, *marks, s.confidence, str(s.runs), f"{s.wall_s:.0f}")
    console.print(table)
    totals = Table("total", "right", "")
    for share in all_shares(scores):
        totals.add_row(share.what, str(share), "reached" if share.reached else "MISSED")
    console.print(totals)


def all_shares(scores: list[Score]) -> list[Share]:
    """The totals of every scored form, and the calibration."""
    forms = [form for form in FORMS if any(score.form == form for score in scores)]
    by_form = [share for form in forms for share in shares(scores, form)]
    return by_form + defect_shares(scores) + calibration(scores)


def arguments(argv: Iterable[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--needs", choices=("cpu", "cuda"))
    parser.add_argument("--cases", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=list(FORMS))
    parser.add_argument("--third", type=int, metavar="N", help="only every third case, from the Nth on")
    parser.add_argument("--directory", type=Path, help="programs that lie elsewhere, with an answers.yaml")
    parser.add_argument("--budget-s", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kept", action="store_true", help="judge the verdicts of last time again")
    parser.add_argument("--json", type=Path, help="write the scores there")
    return parser.parse_args(None if argv is None else list(argv))


def main() -> int:
    given = arguments()
    console = Console(width=160 if not sys.stdout.isatty() else None)
    scores = run(given, console)
    print_scores(scores, console)
    console.print(summary("programs", scores), markup=False, highlight=False)
    if given.json:
        given.json.write_text(json.dumps([asdict(score) for score in scores], indent=1))
    return 0 if all(share.reached for share in all_shares(scores)) else 1


if __name__ == "__main__":
    sys.exit(main())
