"""Where a bad value comes from: the operator that first makes it."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.diagnosis.causes.nan_or_inf import guard_fix
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.value_sources import first_made
from mcp_server.runtime.context import decode
from mcp_server.worker.events import NodeNonFinite
from tests.diagnosis.support import failing, worker_run

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
