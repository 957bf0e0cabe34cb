"""Asks `diagnose` about a batch of unseen programs, and keeps what it said first.

    python -m benchmarks.first_sight.ask batch1 [--jobs 2] [--forms script package] [--programs NAMES]
    python -m benchmarks.first_sight.ask batch1 --table
    python -m benchmarks.first_sight.ask all

The verdicts of a commit go to `BATCH/verdicts/COMMIT.jsonl`, a line per program and form, once: a line that
is there is not asked for again, and a run that was cut off goes on. The product must be as committed. Only
the first commit that was asked about a batch has seen it for the first time: `all` prints, from these alone,
how often a category was right at each confidence.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from rich.console import Console

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.forms import Question, program
from benchmarks.corpus.judge import Score, judge
from benchmarks.corpus.judge_defects import summary, with_defects
from benchmarks.corpus.recorded import neutral
from benchmarks.corpus.score import ask, print_scores
from benchmarks.corpus.validate import ROOT, select
from tools.packed import unpacked

HOME = Path(__file__).resolve().parent
KEPT = (
    "format_version",
    "outcome",
    "category",
    "confidence",
    "summary",
    "guilty",
    "causes",
    "bystanders",
    "cost",
    "error",
)
NO_FORM = "the program made no package with inputs"
Row = dict[str, Any]


def frozen_commit() -> str:
    """The last commit that changed the product; ends the program when the product has other text."""
    changed = _git("status", "--porcelain", "--", "mcp_server")
    if changed:
        raise SystemExit(f"mcp_server is not as committed, so that no commit has these verdicts:\n{changed}")
    return _git("log", "-1", "--format=%H", "--", "mcp_server")[:12]


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def record(batch: Path, given: argparse.Namespace) -> Path:
    """Ask about what has no line yet; the file of this commit."""
    kept = batch / "verdicts" / f"{frozen_commit()}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    there = {(row["case"], row["form"]) for row in rows(kept)}
    answers = select(unpacked(batch), given.needs, given.programs)
    missing = [(a, f) for a in answers for f in given.forms if f in a.forms and (a.name, f) not in there]
    lock = Lock()

    def one(job: tuple[Answer, str]) -> None:
        answer, form = job
        row = _asked(batch, answer, form, given.budget_s)
        with lock, kept.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
        print(f"{answer.name} [{form}] {row['verdict'].get('summary') or row['verdict']}"[:200], flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(one, missing))
    return kept


def _asked(batch: Path, answer: Answer, form: str, budget_s: float) -> Row:
    question: Question | None = program(answer, unpacked(batch)).question(form)
    verdict = ask(question, budget_s) if question else {"error": NO_FORM}
    text = neutral(json.dumps({key: _filled(verdict[key]) for key in KEPT if key in verdict}))
    return {"case": answer.name, "form": form, "verdict": json.loads(text)}


def _filled(value: Any) -> Any:
    """Without fields that are empty: most are, in most verdicts."""
    if isinstance(value, dict):
        return {key: _filled(each) for key, each in value.items() if each not in (None, "", [], {})}
    return [_filled(each) for each in value] if isinstance(value, list) else value


def rows(kept: Path) -> list[Row]:
    """The lines of a file that may not be there yet."""
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def scores(batch: Path, kept: Path) -> list[Score]:
    """The verdicts of `kept` beside the answers of today."""
    answers = {answer.name: answer for answer in select(unpacked(batch), None, [])}
    return [_score(batch, answers[row["case"]], row) for row in rows(kept)]


def _score(batch: Path, answer: Answer, row: Row) -> Score:
    verdict, form = row["verdict"], row["form"]
    if "error" in verdict:
        asked = None if verdict["error"] == NO_FORM else False
        expected = answer.category or "no_fault"
        return Score(answer.name, form, expected, category_right=asked, why=verdict["error"])
    script = unpacked(batch) / f"{answer.name}.py" if form == "script" else None
    return with_defects(judge(answer, form, verdict, script), answer, verdict)


FIRST = {
    "batch1": "84eceeef2499",
    "batch2": "088c62661d88",
    "batch3": "8c1e9b301567",
    "batch4": "4b2313fa952a",
    "batch5": "6765aad08c3f",
    "batch6": "91498d631e29",
}
"""The commit that was asked about each batch first."""
LEVELS = ("proven", "likely", "possible")


def at_first_sight() -> list[Score]:
    """The first verdict about every program and form, as far as there is something to judge."""
    files = {HOME / batch: HOME / batch / "verdicts" / f"{commit}.jsonl" for batch, commit in FIRST.items()}
    return [score for batch, kept in files.items() for score in scores(batch, kept) if score.judged]


def reliability(found: list[Score]) -> str:
    """A table: of the verdicts with each category and confidence, how many name category and component."""
    said: dict[str, list[Score]] = {}
    for score in found:
        if score.confidence:  # a call that ended in an error has none
            said.setdefault(score.category if score.claimed else score.outcome, []).append(score)
    lines = ["| verdict | proven | likely | possible |", "| --- | --- | --- | --- |"]
    for name, of_name in sorted(said.items()):
        cells = []
        for level in LEVELS:
            right = [score.right for score in of_name if score.confidence == level]
            cells.append(f"{sum(right)} of {len(right)}" if right else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("batch", choices=[*sorted(path.name for path in HOME.glob("batch*")), "all"])
    parser.add_argument("--needs", choices=("cpu", "cuda"))
    parser.add_argument("--programs", nargs="*", default=[], help="names; default all")
    parser.add_argument("--forms", nargs="*", choices=("script", "package"), default=["script", "package"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=300)
    parser.add_argument("--table", action="store_true", help="ask nothing, print what was kept")
    given = parser.parse_args()
    if given.batch == "all":
        print(reliability(at_first_sight()), summary("at first sight", at_first_sight()), sep="\n\n")
        return 0
    batch = HOME / given.batch
    files = sorted((batch / "verdicts").glob("*.jsonl")) if given.table else [record(batch, given)]
    for kept in files:
        found = scores(batch, kept)
        console = Console(width=160 if not sys.stdout.isatty() else None)
        print_scores(found, console)
        console.print(summary(f"{given.batch} at {kept.stem}", found), markup=False, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
