"""Where a bad value comes from: the operator or line that makes it, and values that only a run shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes import hang, illegal_memory_access, value_constraints
from mcp_server.diagnosis.causes.nan_or_inf import first_made, guard_fix
from mcp_server.diagnosis.observe.calls import PlainRun
from mcp_server.diagnosis.observe.launches import TraceLaunches
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import ranked
from mcp_server.package.symbols import Symbol
from mcp_server.runtime.context import decode
from mcp_server.runtime.failure import Failure
from mcp_server.tools.trace_launches import Trace
from mcp_server.worker.events import NodeNonFinite
from tests.conftest import ZooPackage
from tests.diagnosis.support import LOG, capture, failing, package_case, phase, run, worker_run

MASK = {"node": "masked_fill", "op": "aten.masked_fill.Scalar", "masked": True, "bad_inputs": []}
SOFTMAX = {"node": "softmax", "op": "aten.softmax.int", "masked": False, "bad_inputs": ["masked_fill"]}


def made(**facts: Any) -> dict[str, Any]:
    return {"event": "node_non_finite", "stack": [], "dtype": "float32", "nan": True, **facts}


def interpreted(*events: dict[str, Any]) -> DiagnosisState:
    case = failing(DiagnosisState(None))
    case.interpreted = worker_run(*events)
    return case


def test_who_made_the_first_bad_value() -> None:
    """A mask is no fault by itself, nor is NaN from outside; a logarithm's minus infinity is its own."""
    log = made(node="log", op="aten.log.default", masked=True, bad_inputs=[])
    mul = made(node="mul", op="aten.mul.Tensor", masked=False, bad_inputs=["log"])
    outside = made(**{**SOFTMAX, "bad_inputs": ["placeholder"]})
    for events, maker in (
        ((made(**MASK), made(**SOFTMAX)), "softmax"),
        ((made(**MASK),), None),
        ((log, mul), "log"),
        ((outside,), None),
    ):
        event = first_made(interpreted(*events))
        assert (event.node if event is not None else None) == maker
        assert maker != "softmax" or (event is not None and "masked" in guard_fix(event).text)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"op": "aten.sum.dim_IntList", "dtype": "float16", "nan": False}, "too large for float16"),
        ({"op": "aten.div.Tensor", "dtype": "float16", "nan": False}, "epsilon"),
        ({"op": "aten.log.default", "dtype": "float32", "nan": True}, "argument of log above 0"),
        ({"op": "aten.rsqrt.default", "dtype": "float32", "nan": False}, "argument of sqrt positive"),
        ({"op": "aten.log_softmax.int", "dtype": "float32", "nan": True}, "in its domain"),
        ({"op": "aten.sum.dim_IntList", "dtype": "bfloat16", "nan": False}, "epsilon"),
        ({"op": "aten.sub.Tensor", "dtype": "float16", "nan": True}, "epsilon"),
    ],
)
def test_the_advice_is_of_the_operator(facts: dict[str, Any], words: str) -> None:
    """Infinity of an operator without a pole, in a dtype of small range, asks for a wider one: no epsilon."""
    event = decode(made(node="n", masked=False, bad_inputs=[], **facts))
    assert isinstance(event, NodeNonFinite)
    assert words in guard_fix(event).text


def test_a_length_made_of_data_is_put_on_its_launch(zoo: ZooPackage) -> None:
    """The length of what a launch found in the data is that launch's, with the input behind it."""
    case = failing(package_case(zoo("unbacked")), "Error: Expected u0 <= 5 but received 9")
    (found,) = value_constraints.detect_size(case)
    assert (found.category, found.guilty.launch_index is not None) == ("shape_out_of_range", True)
    assert "args[0]" in found.summary and "9 where u0 <= 5" in found.summary and found.intervention is None


def test_a_size_read_from_an_input_is_clamped(zoo: ZooPackage) -> None:
    """A value of an input that breaks a check is that input's, and the clamped call is the test."""
    case = failing(package_case(zoo("unbacked")), "Error: Expected u0 <= 5 but received 9")
    assert case.view is not None and case.package is not None
    item = case.package.inputs[0]
    symbols: Any = case.view.wrapper.symbols
    symbols["u0"] = Symbol("u0", "value", "x.item<int64>()", 1, item.name)
    (found,) = value_constraints.detect_size(case)
    assert (found.guilty.kind, found.guilty.input_index) == ("input", 0)
    assert found.intervention is not None
    (change,) = found.intervention.changes
    assert (change.input, change.high) == (0, 5)


def looped(zoo: ZooPackage, numbers: list[int]) -> DiagnosisState:
    """A call that timed out, with these launches at the end of its journal, all of which came back."""
    case = package_case(zoo("loop"))
    case.runs["plain"] = run("plain", ending="timeout")
    base = {"call": 0, "kernel": "k", "line": 7, "state": "done", "seconds": 0.1, "arguments": []}
    rows = [{**base, "launch": number, "sequence": place} for place, number in enumerate(numbers)]
    paths = {"package": Path("m.pt2"), "environment": {}, "rebuild_s": 0.0, "cached": False}
    facts = {"how": "died", "summary": "", "last": rows[-1], "launches": rows, "synchronous": True}
    case.trace = Trace.model_validate({**facts, **paths, "total": 9000})
    return case


def test_a_launch_outside_of_loops_hangs_by_itself(zoo: ZooPackage) -> None:
    """Where the journal ends after a loop, or in its first turns, the last launch is the one."""
    for numbers in ([*[0, 1, 2] * 6, 3], [0, 1, 2]):
        case = looped(zoo, numbers)
        assert (
            list(hang.detect_endless_loop(case)) == []
            and len(list(illegal_memory_access.detect_last_launch(case))) == 1
        )


def hung(zoo: ZooPackage, **more: object) -> DiagnosisState:
    """A program that its time limit ended in the one call of this package that it had begun."""
    case = package_case(zoo("loop"))
    case.call = CallSpec("replay", {"package": str(zoo("loop")), "steps": [{"do": "call"}]}, zoo("loop"))
    load = phase(1, loader="AOTIModelPackageLoader", package=zoo("loop"))
    call = phase(2, load=1, thread=1) | {"outcome": "unfinished"}
    case.capture = capture(loads=[load], calls=[call | more, *([call] if more else [])])
    case.runs["script"] = run("script", ending="timeout")
    return case


def test_a_call_that_hung_is_traced_first(zoo: ZooPackage) -> None:
    """The time that the program left is for the launches: the plain call does not come before."""
    case = hung(zoo)
    assert TraceLaunches().gain(case, []) == 1.0 and PlainRun().gain(case, []) == 0.0
    case.done.append("trace_launches")
    assert PlainRun().gain(case, []) > 0  # the trace was not possible, or the call came back
    case.trace = looped(zoo, [0, 1, 2] * 6).trace
    assert case.trace is not None
    ended = Failure(ending="timeout", returncode=None, signal=None, log=LOG)
    case.trace = case.trace.model_copy(update={"failure": ended})
    assert PlainRun().gain(case, []) == 0.0
    found = ranked([*hang.detect_waiting_calls(case), *hang.detect_endless_loop(case)], case)
    assert [each.guilty.launch_index for each in found] == [0, None]  # the loop says more than the call


def test_calls_of_several_threads_are_not_traced_first(zoo: ZooPackage) -> None:
    """They may wait for each other, which one call by itself does not show."""
    case = hung(zoo, thread=2)
    assert TraceLaunches().gain(case, []) == 0.0 and PlainRun().gain(case, []) > 0
