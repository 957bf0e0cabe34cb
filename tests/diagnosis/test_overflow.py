"""An operator whose integers do not fit, as a cause."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.diagnosis.causes.value_constraints import KEY, detect_overflow, detect_rounded, exact_trial
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import bystanders, confidence, ranked
from tests.diagnosis.support import capture, phase, run, worker_run

CHECK = """Traceback (most recent call last):
  File "/app/invoice.py", line 9, in <module>
    raise ValueError(text)
ValueError: books do not balance"""
AGREES = {"event": "compared", "equal": True, "outputs": []}


OVERFLOW = {
    "event": "node_overflow",
    "node": "mul",
    "op": "aten.mul.Tensor",
    "stack": [],
    "dtype": "int32",
    "index": [0],
    "value": -5,
    "exact": 4294967291,
    "count": 1,
    "modular": False,
}


def interpreted(*events: dict[str, Any], text: str = CHECK) -> DiagnosisState:
    """A program that ended in `text` after a good call, with what the interpretation reported."""
    case = DiagnosisState(None)
    case.capture = capture(calls=[phase(1, load=0, thread=1)])
    case.runs["script"], case.runs["plain"] = run("script", text), run("plain")
    case.interpreted = worker_run(*events)
    trial = exact_trial(case)
    if trial is not None:
        case.trials[KEY] = trial
    return case


@pytest.mark.parametrize(
    ("modular", "compared", "sure"),
    [(False, None, "likely"), (True, None, "possible"), (False, [False, True, False], "proven")],
)
def test_a_failed_check_with_an_overflow(modular: bool, compared: list[bool] | None, sure: str) -> None:
    """Likely without a reference, possible for a hash; proven where the exact result passes."""
    more = [{"event": "compared_exact", "equal": compared}] if compared else []
    case = interpreted(AGREES, {**OVERFLOW, "modular": modular}, *more)
    (found,) = detect_overflow(case)
    assert (found.category, found.guilty.name, confidence(found, case)) == (
        "wrong_output",
        "aten.mul.Tensor",
        sure,
    )


def test_an_overflow_that_makes_no_difference_is_a_bystander() -> None:
    """In int64 the outputs are not what is expected, either."""
    case = interpreted(AGREES, OVERFLOW, {"event": "compared_exact", "equal": [False, False, False]})
    assert len(bystanders(detect_overflow(case), case)) == 1


@pytest.mark.parametrize("text", ["", CHECK.replace("raise ValueError(text)", "x = books[text]")])
def test_a_healthy_program_may_mean_it(text: str) -> None:
    """Neither a good end nor a statement that raised is about numbers; nor is a package that diverges."""
    assert not list(detect_overflow(interpreted(AGREES, OVERFLOW, text=text)))
    assert not list(detect_overflow(interpreted({**AGREES, "equal": False}, OVERFLOW)))


def test_codes_in_half_precision_are_possible_at_most() -> None:
    """What they were before the cast is not known; an operator that overflows explains more."""
    codes = {"event": "constant_rounded", "op": "article", "dtype": "bfloat16", "largest": 540, "bound": 256}
    case = interpreted(AGREES, codes)
    (found,) = detect_rounded(case)
    assert (found.category, found.guilty.name, confidence(found, case)) == (
        "constants",
        "article",
        "possible",
    )
    case = interpreted(AGREES, codes, OVERFLOW)
    best = ranked([*detect_rounded(case), *detect_overflow(case)], case)[0]
    assert best.category == "wrong_output"
    assert not list(detect_rounded(interpreted(AGREES, codes, text="")))
