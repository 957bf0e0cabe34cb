"""What a verdict costs beside one plain failing run of the same program, or of the same package's call.

`python -m benchmarks.diagnose_cost [--needs cpu|cuda] [--programs N] [NAME...]` takes programs of the corpus
one after the other. It times the plain run of the script and `diagnose` of it, each with an empty compile
cache; then the call of its package as a user makes it (import torch, `aoti_load_package`, call) and
`diagnose` of package and inputs. It prints wall-clock seconds and ratios, and keeps them with their medians
in `benchmarks/results.json`. Targets of the median: script 1.25 (1.4 on a GPU), package 1.0.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks import keep, kept
from benchmarks.corpus.answers import Answer
from benchmarks.corpus.forms import Program, Question, program
from benchmarks.corpus.validate import select

ROOT = Path(__file__).resolve().parent.parent
# A captured call has its arguments' leaves, not the arguments.
PLAIN = """
import sys, torch
model = torch._inductor.aoti_load_package(sys.argv[1])
model(*torch.load(sys.argv[2], weights_only=True)["leaves"])
"""
TARGETS = {"cpu": {"script": 1.25, "package": 1.0}, "cuda": {"script": 1.4, "package": 1.0}}
Measured = dict[str, dict[str, float]]  # by form: seconds of both, and their ratio
COMMAND = (sys.executable, "-c", "from mcp_server.cli.main import main; main()", "diagnose")


def seconds_of(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> float:
    """Wall-clock seconds of a command, which may fail."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "AOTI_DEBUG_PYTHON": sys.executable, **env}
    began = time.monotonic()
    subprocess.run(argv, cwd=cwd, env=variables, capture_output=True, check=False, timeout=400)
    return time.monotonic() - began


def of_script(asked: Question) -> tuple[float, float]:
    """Seconds of the plain run and of the diagnosis, each with an empty compile cache."""
    assert asked.script is not None
    taken = []
    for argv in ((sys.executable, str(asked.script)), (*COMMAND, *asked.arguments)):
        with tempfile.TemporaryDirectory() as cache:
            variables = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "AOTI_DEBUG_STATE": f"{cache}/state"}
            taken.append(seconds_of(argv, asked.cwd, variables))
    return taken[0], taken[1]


def of_package(asked: Question) -> tuple[float, float] | None:
    """Seconds of the plain call and of the diagnosis. None for a call without a file of inputs."""
    given = dict(zip(asked.arguments[::2], asked.arguments[1::2], strict=True))
    if "--inputs" not in given or "--extra-imports" in given or given["--model-name"] != "model":
        return None
    with tempfile.TemporaryDirectory() as state:
        plain = (sys.executable, "-c", PLAIN, given["--package"], given["--inputs"])
        variables = {"AOTI_DEBUG_STATE": state}
        return (
            seconds_of(plain, asked.cwd, variables),
            seconds_of((*COMMAND, *asked.arguments), asked.cwd, variables),
        )


def measured(asked: Program) -> Measured:
    """Seconds and ratio of each form that the program has."""
    found = {}
    for form, measure in (("script", of_script), ("package", of_package)):
        question = asked.question(form)
        taken = measure(question) if question is not None else None
        if taken is not None:
            plain, verdict = (round(seconds, 2) for seconds in taken)
            found[form] = {"plain": plain, "diagnose": verdict, "ratio": round(verdict / plain, 2)}
            print(f"{asked.answer.name:24} {form:8} {plain:7.2f} s {verdict:7.2f} s {verdict / plain:6.2f} x")
    return found


def chosen(needs: str, names: Sequence[str], most: int) -> list[Answer]:
    """Failing programs of the corpus for this hardware that end by themselves, evenly spread."""
    fitting = [
        answer for answer in select(needs, []) if answer.outcome == "fault" and answer.category != "hang"
    ]
    if names:
        return [answer for answer in fitting if answer.name in names]
    return fitting[:: max(1, len(fitting) // most)][:most]


def keep_medians(rows: Mapping[str, Measured], needs: str) -> None:
    """Write what was measured so far, and print the medians."""
    medians = {
        form: round(statistics.median(row[form]["ratio"] for row in rows.values() if form in row), 2)
        for form in TARGETS[needs]
        if any(form in row for row in rows.values())
    }
    for form, ratio in medians.items():
        target = TARGETS[needs][form]
        print(
            f"median {form:8} {ratio:5.2f} x (target {target}: {'reached' if ratio <= target else 'MISSED'})"
        )
    load = round(os.getloadavg()[0], 1)
    found = {"torch": torch.__version__, "load": load, "medians": medians, "programs": rows}
    keep("diagnose_cost", {**kept("diagnose_cost"), needs: found})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--needs", choices=list(TARGETS), default="cpu")
    parser.add_argument("--programs", type=int, default=12)
    options = parser.parse_args()
    rows: dict[str, Measured] = {}
    for answer in chosen(options.needs, options.names, options.programs):
        rows[answer.name] = measured(program(answer))
        keep_medians(rows, options.needs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
