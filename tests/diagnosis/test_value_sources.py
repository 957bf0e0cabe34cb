"""Where a bad value comes from: the operator or line that makes it, and values that only a run shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.causes.nan_or_inf import first_made, guard_fix
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.runtime.context import decode
from mcp_server.tools.trace_launches import Trace
from tests.conftest import ZooPackage
from tests.diagnosis.support import by, failing, package_case, run, worker_run

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
    event: Any = decode(made(node="n", masked=False, bad_inputs=[], **facts))
    assert words in guard_fix(event).text


def test_a_length_made_of_data_is_put_on_its_launch(zoo: ZooPackage) -> None:
    """The length of what a launch found in the data is that launch's, with the input behind it."""
    case = failing(package_case(zoo("unbacked")), "Error: Expected u0 <= 5 but received 9")
    (found,) = by("value_constraints.detect_size", case)
    assert (found.category, found.guilty.launch_index is not None) == ("shape_out_of_range", True)
    assert (
        "args[0]" in found.summary
        and "is 9, but at most 5 is assumed" in found.summary
        and found.intervention is None
    )


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
            by("hang.detect_endless_loop", case) == []
            and len(by("illegal_memory_access.detect_last_launch", case)) == 1
        )
