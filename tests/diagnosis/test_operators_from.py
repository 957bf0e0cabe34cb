"""A call whose operators only its program has, and where those of a replay came from."""

from __future__ import annotations

from mcp_server.diagnosis.components import operator_missing_here, operators_from
from mcp_server.diagnosis.state import DiagnosisState
from tests.diagnosis.support import capture, phase, run

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
