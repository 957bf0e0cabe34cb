"""Operators of a call: those that only its program has, those of a replay, and one that refused an index."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.causes import index_out_of_bounds, log_text
from mcp_server.diagnosis.components import operator_missing_here, operators_from
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.value_sources import OperatorIndex
from mcp_server.diagnosis.verdict import confidence, ranked
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, failing, package_case, phase, run

MISSING = "RuntimeError: Could not find schema for shop::halve. Custom operators created via torch"


def taken(refused: str = "", *lines: int) -> dict[str, object]:
    return {"event": "operators_taken", "file": "/job/serve.py", "lines": list(lines), "refused": refused}


def program(text: str) -> DiagnosisState:
    """A program that printed this after a call that came back."""
    case = DiagnosisState(None)
    case.capture = capture(calls=[phase(3, load=1, thread=1)])
    case.runs["script"] = run("script", text)
    return case


def test_a_call_that_lacks_what_the_program_had() -> None:
    """The run in the worker says nothing about the program, and it is said why it could not be made."""
    plain = run("plain", MISSING, taken("line 4 would have to be run"))
    reason = operator_missing_here(plain, program("AssertionError: Tensor-likes are not close!"))
    assert "shop::halve" in reason and "line 4" in reason


def test_an_operator_that_the_program_lacked_too() -> None:
    """Then it is the failure itself."""
    assert not operator_missing_here(run("plain", MISSING), program(MISSING))
    assert not operator_missing_here(run("plain", "RuntimeError: another one"), program("x"))


def test_where_the_operators_came_from() -> None:
    """The verdict tells the lines of the program that were run for its operators."""
    case = program("x")
    case.runs["plain"] = run("plain", "", taken("", 12, 30))
    (fact,) = operators_from(case)
    assert "line 12, 30 of serve.py" in fact.fact
    case.runs["plain"] = run("plain", "", taken("it cannot be read"))
    assert operators_from(case) == []


# An operator that refused an index which another launch had computed.

REFUSED = "RuntimeError: Index 11 of input takes value 1041 which is not in the valid range [0, 1024)"


def test_the_launch_that_computed_it_comes_before_the_bare_text(
    zoo: ZooPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text and wrapper are two sources; the verdict gets a launch, the value and what it depends on."""
    case = failing(package_case(zoo("logarithm")), REFUSED)
    assert case.view is not None
    launch = case.view.wrapper.launches[0]
    index = OperatorIndex(launch, launch.tensors[0], 1024, None, (0,))
    monkeypatch.setattr(index_out_of_bounds, "operator_indices", lambda _case: [index])
    best = ranked([*log_text.detect_from_log(case), *index_out_of_bounds.detect_operator_index(case)], case)[
        0
    ]
    assert best.guilty.launch_index == 0 and best.guilty.value == "1041, where 0 to 1023 are allowed"
    assert "input 0" in best.summary and confidence(best, case) == "likely"
