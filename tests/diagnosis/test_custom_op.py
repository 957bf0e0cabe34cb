"""Custom operators: what they raise and promise, which of them a call has, and what they refuse."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.causes.custom_op import REPAIRED, SAME
from mcp_server.diagnosis.components import operator_missing_here, operators_from
from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe.intervene import in_eager
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, is_bystander
from mcp_server.logs.log import read_log
from mcp_server.worker import events
from mcp_server.worker.report import Overrun
from tests.conftest import ZooPackage
from tests.diagnosis.support import by, capture, failing, package_case, phase, run, trial, worker_run

CALLER = "  /app/serve.py(55): main"
OPERATOR = "  /app/ops.py(15): spacing"
TORCH = "  /venv/lib/python3.11/site-packages/torch/_library/custom_ops.py(502): wrapped_fn"
SHIM = (
    "Error: aoti_torch_proxy_executor_call_function(proxy_executor, 0, 0) API call failed at /c/a.cpp, line 9"
)


def text(*frames: str) -> str:
    """What a call prints whose operator raised through these frames, innermost first."""
    return "\n".join([SHIM, "RuntimeError: ValueError: no peak", "", "At:", *frames])


def test_an_exception_of_an_operator_names_it(zoo: ZooPackage) -> None:
    """The node gives the operator, the frames its line; not where torch raised below the operator."""
    case = failing(package_case(zoo("plugin")), text(OPERATOR, TORCH, CALLER))
    (found,) = by("custom_op.detect_operator_error", case)
    assert (found.category, found.guilty.kind, found.guilty.name) == (
        "custom_op",
        "op",
        "aotizoo::halve_rows",
    )
    assert (found.guilty.model_locations[0].file, found.guilty.model_locations[0].line) == ("/app/ops.py", 15)
    assert confidence(found, case) == "likely"
    assert not list(by("custom_op.detect_operator_error", failing(case, text(TORCH, CALLER))))


def test_a_log_alone_names_the_operators_function() -> None:
    """Without a package the function and its line are the party."""
    case = DiagnosisState(None)
    case.log, case.log_source = read_log(text(OPERATOR, TORCH, CALLER).splitlines()), "crash.log"
    first = next(iter(detect(case)))
    assert (first.category, first.guilty.kind, first.guilty.name) == ("custom_op", "op", "spacing")
    assert first.guilty.model_locations[0].line == 15


FOUND = trial(REPAIRED, Effect.NOT_APPLICABLE, SAME)


def watched(*, failing: bool) -> DiagnosisState:
    """An operator was seen to write to its argument, and the package's outputs did not depend on that."""
    case = DiagnosisState(None)
    told = {"op": "own.trim", "call": 1, "layouts": [], "mutated": ["level"], "aliases": []}
    case.operators = worker_run({"event": "operator", **told})
    case.runs["plain"] = run("plain", "Error: wrong" if failing else "")
    assert in_eager(worker_run({"event": "compared", "equal": True}), FOUND).proves
    departs = in_eager(worker_run({"event": "compared", "equal": False}), FOUND)
    assert departs.effect is Effect.NOT_APPLICABLE, "neither the cause nor cleared"
    case.trials[REPAIRED.key] = in_eager(None, FOUND)
    return case


@pytest.mark.parametrize("failing", [True, False])
def test_a_broken_promise_without_effect_is_neither_cleared_nor_claimed(failing: bool) -> None:
    """Without a program to hold the package against, a call that is well leaves the question open."""
    case = watched(failing=failing)
    (found,) = by("custom_op.detect_operator_results", case)
    assert not is_bystander(found, case) and found.weak != failing
    assert confidence(found, case) == "possible"


def test_a_write_beyond_its_memory_is_told_before_any_other_promise() -> None:
    """It spoils what others use, whether or not this call shows it."""
    case = watched(failing=False)
    assert case.operators is not None
    (event,) = case.operators.all(events.Operator)
    event.overrun = [Overrun([75, 3], "torch.float32", 0, 124)]
    (found,) = detect(case)
    assert (found.category, found.guilty.name) == ("illegal_memory_access", "torch.ops.own.trim")
    assert "124 bytes past the end" in found.summary and not found.weak


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
    """The run in the worker says nothing about the program, unless the program lacked it, too."""
    plain = run("plain", MISSING, taken("line 4 would have to be run"))
    reason = operator_missing_here(plain, program("AssertionError: Tensor-likes are not close!"))
    assert "shop::halve" in reason and "line 4" in reason
    assert not operator_missing_here(run("plain", MISSING), program(MISSING))


def test_where_the_operators_came_from() -> None:
    """The verdict tells the lines of the program that were run for its operators."""
    case = program("x")
    case.runs["plain"] = run("plain", "", taken("", 12, 30))
    (fact,) = operators_from(case)
    assert "line 12, 30 of serve.py" in fact.fact
    case.runs["plain"] = run("plain", "", taken("it cannot be read"))
    assert operators_from(case) == []
