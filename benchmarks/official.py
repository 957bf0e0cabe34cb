"""The procedure of PyTorch's AOTInductor Debugging Guide as a script: every step runs the program again.

Steps in the guide's order: the plain run, its sanity checks in one run (input checks, NaN asserts), the two
flags that make a CUDA fault deterministic, the value printer at level 3 (which kernel was last), at level 2
for that kernel. All but the run-time flags need a recompile, which the program does by itself. Every
step is carried out; when the guilty party was first named is kept, where a lucky reader would have stopped.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.corpus.answers import Answer

DETERMINISTIC = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_LAUNCH_BLOCKING": "1"}
CACHE = "inductor"
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
        if name == "plain" and (directory / CACHE).exists():
            shutil.copytree(directory / CACHE, directory / LEFT)
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
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(log.parent / CACHE), "PYTHONUNBUFFERED": "1"}
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
