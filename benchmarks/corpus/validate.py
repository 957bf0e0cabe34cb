"""Checks that each case fails (or ends) as its answer says; needs torch and PyYAML.

`python -m benchmarks.corpus.validate [NAME…] --needs cuda --jobs 8 --out DIR` writes one log per case and
`summary.json`; it exits with 1 when a case did not behave as expected. A program with several defects also
runs without its causes and without its bystanders (`answers.trials`).
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.corpus.answers import HOME, PROGRAMS, Answer, read_answers, trials
from tools.made import MADE

ROOT = Path(__file__).resolve().parents[2]
Run = tuple[str, "Future[dict[str, Any]]"]


def select(needs: str | None, names: Sequence[str] = (), home: Path = HOME) -> list[Answer]:
    """The answers in `home`, by name and for `needs` (`cpu`, `cuda`, or None for both)."""
    found = read_answers(home / "answers.yaml")
    unknown = set(names) - {answer.name for answer in found}
    if unknown:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}")
    return [a for a in found if needs in (None, a.needs) and (not names or a.name in names)]


def case_environment(name: str, cache: Path) -> dict[str, str]:
    """Output that survives a crash, no ISA probe, and a compile cache for the case alone."""
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(cache / name),
    }


def run_case(answer: Answer, directory: Path, out: Path, cache: Path) -> dict[str, Any]:
    """Run one case with its output in `out/NAME.log`; how it ended, and whether that was expected."""
    program, log = directory / f"{answer.name}.py", out / f"{answer.name}.log"
    began = time.monotonic()
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, str(program)],
            cwd=out,
            env=case_environment(answer.name, cache),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ended = _wait(child, answer.timeout_s)
    seconds = round(time.monotonic() - began, 1)
    text = log.read_text(errors="replace")
    return {
        "case": answer.name,
        "rc": child.returncode,
        "timed_out": not ended,
        "wall_s": seconds,
        "as_expected": as_expected(answer, text, child.returncode, timed_out=not ended),
        "last_line": next((line for line in reversed(text.splitlines()) if line.strip()), "")[:300],
    }


def as_expected(answer: Answer, text: str, code: int, *, timed_out: bool) -> bool:
    """Whether the text (with a last line `rc=CODE`) is as expected; only a hang may time out."""
    told = f"{text}\nrc={code}\n"
    found = re.search(answer.expected_error, told, re.MULTILINE) is not None
    if answer.outcome == "no_fault":
        return found and code == 0
    return found and code != 0 and (answer.category == "hang" or not timed_out)


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the child, and kill its whole session after `timeout_s`; whether it ended by itself."""
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return False
    return True


def _start(pool: Executor, answer: Answer, directory: Path, out: Path) -> list[Run]:
    """Queue every run that the answer asks for: without causes, only the program as it is."""
    found = []
    for number, trial in enumerate(trials(answer, (directory / f"{answer.name}.py").read_text())):
        place = out / answer.name / str(number) if number else out
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{answer.name}.py").write_text(trial.source)
        found.append((trial.what, pool.submit(run_case, trial.wanted, place, place, out / "inductor")))
    return found


def _finished(answer: Answer, runs: list[Run]) -> dict[str, Any]:
    """Wait for the runs of a program, print its line, and give the result of the plain run."""
    results = [{"what": what, **run.result()} for what, run in runs]
    good = all(result["as_expected"] for result in results)
    seconds = sum(result["wall_s"] for result in results)
    print(
        f"{'ok ' if good else 'BAD'} {answer.name:24} rc={results[0]['rc']:<4} {seconds:6.1f} s"
        f"  {results[0]['last_line'] if len(results) == 1 else ''}"
        + "; ".join(f"{'ok' if r['as_expected'] else 'NOT SO'}: {r['what']}" for r in results[1:]),
        flush=True,
    )
    for result in results:
        if not result["as_expected"]:
            print(f"    {result['what']}: rc={result['rc']} {result['last_line']}", flush=True)
    return {**results[0], "as_expected": good, "trials": results[1:]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="cases, default all")
    parser.add_argument("--directory", type=Path, help="programs that lie elsewhere, with an answers.yaml")
    parser.add_argument("--needs", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=MADE / "corpus" / "validate")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    directory = given.directory.resolve() if given.directory else PROGRAMS
    answers = select(given.needs, given.names, given.directory or HOME)

    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [(answer, _start(pool, answer, directory, out)) for answer in answers]
        results = [_finished(answer, trials) for answer, trials in runs]
    (out / "summary.json").write_text(json.dumps(results, indent=1))
    return 0 if all(result["as_expected"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
