"""A whole number divided by zero: who is said to have given the zero, and how sure that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcp_server.diagnosis import value_sources
from mcp_server.diagnosis.causes import value_constraints
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.value_sources import InputSlice
from mcp_server.diagnosis.verdict import confidence
from mcp_server.package.assertion import Division, IndexSource
from mcp_server.package.launches import Launch
from mcp_server.package.terms.term import Element, Position
from mcp_server.tools.check_devices import Given
from tests.diagnosis.support import run, trial

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


def test_nothing_is_claimed_before_the_divisors_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of an input that are divisors are looked at first: they tell more than the code."""
    assert not list(value_constraints.detect_division(case_of(monkeypatch)))


def test_an_element_that_is_zero_is_likely_until_it_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error and the value are two observations of one cause; the call without zeros is the test of it."""
    case = case_of(monkeypatch)
    case.done.append("look_at_indices")
    case.index_values[PART] = {"elements": 4, "outside": 1, "index": [2], "value": 0}
    (found,) = value_constraints.detect_division(case)
    assert (found.category, found.guilty.name, found.guilty.value) == (
        "input_mismatch",
        "args[1]",
        "0 at [2]",
    )
    assert found.crashing is not None and found.crashing.generated_location == "kernel.cpp:9"
    assert confidence(found, case) == "likely"


def test_an_input_without_zeros_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A division whose divisors were all seen to be other numbers did not fail."""
    case = case_of(monkeypatch)
    case.done.append("look_at_indices")
    case.index_values[PART] = {"elements": 4, "outside": 0}
    assert not list(value_constraints.detect_division(case))


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
