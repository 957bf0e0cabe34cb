"""Whole numbers that go wrong: divided by zero, or too large for their type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcp_server.diagnosis import value_sources
from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes import value_constraints
from mcp_server.diagnosis.causes.value_constraints import KEY, detect_overflow, exact_trial
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import bystanders, confidence
from mcp_server.package.assertion import Division, IndexSource
from mcp_server.package.launches import Launch
from mcp_server.package.terms.term import Element, Position
from mcp_server.tools.check_devices import Given
from mcp_server.worker.events import Event, IndexValues
from mcp_server.worker.protocol import InputSlice
from tests.diagnosis.support import capture, phase, run, trial, worker_run

SAID = "Error: inductor_cpu_throw_if_integer_div_error, cpp_prefix.h:827, ZeroDivisionError"
LAUNCH = Launch(2, "cpp_fused", "cpp_fused", "cpp", "cpp_fused", (), 1, 0, 0)
SOURCE = IndexSource(
    Element("in_ptr1", Position("x0"), "int64", 3),
    "arg1_1",
    "input",
    "input 1 (args[1])",
    (),
    ("input 1 (args[1])",),
)
DIVIDED = Division(LAUNCH, "kernel.cpp:9", "auto tmp2 = tmp0 / tmp1;", (SOURCE,), plain=True)
PART = InputSlice(1, 0, 1, 0, 0, unlike=0)


def case_of(monkeypatch: pytest.MonkeyPatch, found: Division = DIVIDED) -> DiagnosisState:
    """A call that failed, of a package with this one division."""
    case = DiagnosisState(None)
    inputs = [
        SimpleNamespace(index=n, label=f"input {n} (args[{n}])", path=f"args[{n}]", dtype="int64")
        for n in (0, 1)
    ]
    package: Any = SimpleNamespace(inputs=inputs, constants=(), wrapper_text="")
    case.package = package
    case.call = CallSpec("run", {}, Path("m.pt2"))
    case.given = Given(())
    case.runs["plain"] = run("plain", SAID)
    monkeypatch.setattr(value_constraints, "failed_divisions", lambda _case: (found,))
    return case


def test_an_element_that_is_zero_is_likely_until_it_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divisors in an input are looked at first; where one is zero, the call without zeros is the test."""
    case = case_of(monkeypatch)
    assert not list(value_constraints.detect_division(case))
    case.done.append("look_at_indices")
    case.index_values[PART] = IndexValues(PART, 4, outside=1, first=[([2], 0)])
    (found,) = value_constraints.detect_division(case)
    told = (found.category, found.guilty.name, found.guilty.value)
    assert told == ("input_mismatch", "args[1]", "0 at [2]") and confidence(found, case) == "likely"
    assert found.crashing is not None and found.crashing.generated_location == "kernel.cpp:9"
    case.index_values[PART] = IndexValues(PART, 4)
    assert not list(value_constraints.detect_division(case)), "all were seen to be other numbers"


def test_a_computed_divisor_is_proven_by_a_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names no launch: a call without zeros that passes proves it, one that fails says nothing."""
    case = case_of(monkeypatch, replace(DIVIDED, plain=False))
    (found,) = value_constraints.detect_division(case)
    assert "computed from input 1" in found.summary and confidence(found, case) == "likely"
    assert found.intervention is not None
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    assert confidence(found, case) == "proven"
    case.trials[found.intervention.key] = trial(found.intervention, Effect.SAME)
    (again,) = value_constraints.detect_division(case)
    assert again.intervention is None and confidence(again, case) == "likely"


OF_SCRIPT = """Traceback (most recent call last):
  File "serve.py", line 3, in <module>
    share = total // count
ZeroDivisionError: integer division or modulo by zero"""


@pytest.mark.parametrize("text", ["Error: Integer floor division by zero", "Segmentation fault", OF_SCRIPT])
def test_other_failures_are_no_such_division(text: str) -> None:
    """Sizes are checked on the host, a bad access is another thing, and so is a statement of the script."""
    case = DiagnosisState(None)
    case.runs["plain"] = run("plain", text)
    assert value_sources.failure(case) is None and not list(value_constraints.detect_division(case))


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


def interpreted(*events: Event | dict[str, Any], text: str = CHECK) -> DiagnosisState:
    """A program that ended in `text` after a good call, with what the interpretation reported."""
    case = DiagnosisState(None)
    case.capture = capture(calls=[phase(1, load=0, thread=1)])
    case.runs["script"], case.runs["plain"] = run("script", text), run("plain")
    case.interpreted = worker_run(*events)
    trial = exact_trial(case)
    if trial is not None:
        case.trials[KEY] = trial
    return case


def test_a_failed_check_with_an_overflow() -> None:
    """Likely without a reference, possible for a hash; proven where the exact result passes, else cleared."""
    exact: list[list[bool] | None] = [None, None, [False, True, False], [False] * 3]
    for modular, compared, sure in zip(
        (False, True, False, False), exact, ("likely", "possible", "proven", ""), strict=True
    ):
        more = [{"event": "compared_exact", "equal": compared}] if compared else []
        case = interpreted(AGREES, {**OVERFLOW, "modular": modular}, *more)
        (found,) = detect_overflow(case)
        assert (found.category, found.guilty.name) == ("wrong_output", "aten.mul.Tensor")
        assert len(bystanders([found], case)) == (not sure)
        assert not sure or confidence(found, case) == sure
