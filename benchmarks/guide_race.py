"""Time to a verdict: `diagnose` against the procedure of PyTorch's guide, in turn on the same machine.

`python -m benchmarks.guide_race --needs cpu` runs both on every failing case of the corpus, and prints
runs, compiles, seconds, the ratio, and whether each named the guilty party. `--form` says what `diagnose`
gets (`FORMS`): the program, or the package and the failing call's inputs; the guide has the program
in either. With `--jobs N`, N cases run side by side.

The guide's first step, the plain run, begins with an empty compile cache. What that run left there is what
the guide's later steps begin with, and the program under `diagnose` too; with `--cold` that begins with
nothing. Whoever follows the guide is given the benefit of the doubt (`names_guilty`). Logs of the
guide and verdicts stay below `corpus/races` in the folder of `tools/made.py`.

The guide as a script: every step runs the program again. Steps in its order: the plain run, its sanity checks
in one run (input checks, NaN asserts), the two flags that make a CUDA fault deterministic, the value printer
at level 3 (which kernel was last), at level 2 for that kernel. All but the run-time flags need a recompile,
which the program does by itself. Every step is carried out; when the guilty party was first named is kept,
where a lucky reader would have stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.forms import CACHE, Program, Question, program
from benchmarks.corpus.judge import Score, judge
from benchmarks.corpus.score import ask, mark
from benchmarks.corpus.validate import select

DETERMINISTIC = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_LAUNCH_BLOCKING": "1"}
INDUCTOR = "inductor"
LEFT = "left-by-the-plain-run"
PRINTER = "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER"
FILTER = "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT"
BEFORE_LAUNCH = re.compile(r"\[ before_launch: (\S+) \]")
ADDRESS = re.compile(r"0x[0-9a-f]+|\d+|/\S+")


@dataclass
class Procedure:
    """What the procedure cost; `named_by` which step, after `named_s` seconds, it named the guilty party.

    Both are None where no step did. `cut` says that it was given up for its time: it would have cost more.
    `steps` has the seconds of each.
    """

    runs: int = 0
    wall_s: float = 0.0
    named_by: str | None = None
    named_s: float | None = None
    cut: bool = False
    steps: dict[str, float] = field(default_factory=dict)


def follow(answer: Answer, script: Path, directory: Path, limit_s: float = math.inf) -> Procedure:
    """Carry the steps out in turn; none begins after `limit_s` seconds.

    The compile cache is empty at first; what it holds after the plain run is kept as `directory/LEFT`.
    """
    done = Procedure()
    plain = ""
    for name, flags in steps(answer, directory):
        if done.wall_s > limit_s:
            done.cut = True
            return done
        text, seconds = run_step(script, directory / f"{name}.log", flags, answer.timeout_s)
        done.runs += 1
        done.wall_s += seconds
        done.steps[name] = seconds
        if done.named_by is None and names_guilty(answer, text, plain):
            done.named_by, done.named_s = name, done.wall_s
        plain = plain or text
        if name == "plain" and (directory / INDUCTOR).exists():
            shutil.copytree(directory / INDUCTOR, directory / LEFT)
    return done


def steps(answer: Answer, directory: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Names and flags. The last step depends on the log of the one before it."""
    stable = DETERMINISTIC if answer.needs == "cuda" else {}
    yield "plain", {}
    yield "sanity_checks", {"AOTI_RUNTIME_CHECK_INPUTS": "1", "TORCHINDUCTOR_NAN_ASSERTS": "1"}
    if stable:
        yield "deterministic", stable
    yield "printer_3", {PRINTER: "3", **stable}
    kernels = BEFORE_LAUNCH.findall((directory / "printer_3.log").read_text(errors="replace"))
    if kernels:
        yield "printer_2", {PRINTER: "2", FILTER: kernels[-1], **stable}


def run_step(script: Path, log: Path, flags: Mapping[str, str], timeout_s: float) -> tuple[str, float]:
    """Output and seconds of the program under `flags`, with one compile cache for the whole procedure."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(log.parent / INDUCTOR), "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=log.parent,
            env={**os.environ, **cache, **flags},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return log.read_text(errors="replace"), time.monotonic() - began


def names_guilty(answer: Answer, text: str, plain: str) -> bool:
    """Whether `text` says more than the plain run did, and that is who is guilty.

    Generous: an input is named by its number in a check, a NaN by any printed NaN, anything else by its name.
    """
    known = {ADDRESS.sub("", line) for line in plain.splitlines()}
    new = [line for line in text.splitlines() if ADDRESS.sub("", line) not in known]
    return any(re.search(pattern, line) for pattern in _patterns(answer) for line in new)


def _patterns(answer: Answer) -> Iterator[str]:
    if answer.category == "nan_or_inf":
        yield r"At least one (NaN|INF)|^(Mean|Min|Max) value: -?(nan|inf)"
    for party in answer.guilty:
        if "input_index" in party:
            yield rf"input_handles\[{party['input_index']}\]: "
        elif len(party.get("name", "")) > 3:
            yield rf"^(?!\s*(File|frame)\b|.*print\().*(?i:{party['name']})"
    if answer.category in ("script_error", "toolchain", "compile_failure", "invalid_package"):
        yield answer.expected_error


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
