"""Where a bad value comes from: the operator that first makes it, and the line in a helper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.diagnosis.causes.nan_or_inf import guard_fix
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.value_sources import deepened, first_made
from mcp_server.model import Component, ModelLocation
from mcp_server.runtime.context import decode, stream_events
from mcp_server.worker.events import NodeNonFinite, NodeRaised
from mcp_server.worker.interpret import Watcher
from mcp_server.worker.report import Report
from tests.diagnosis.support import capture, failing, phase, worker_run

LEAST = "-9223372036854775808"
MASK = {"node": "masked_fill", "op": "aten.masked_fill.Scalar", "masked": True, "bad_inputs": []}
SOFTMAX = {"node": "softmax", "op": "aten.softmax.int", "masked": False, "bad_inputs": ["masked_fill"]}


def made(**facts: Any) -> dict[str, Any]:
    return {"event": "node_non_finite", "stack": [], "dtype": "float32", "nan": True, **facts}


def refused(text: str, *behind: str) -> dict[str, Any]:
    return {
        "event": "node_raised",
        "node": "gather",
        "op": "aten.gather.default",
        "stack": [],
        "text": text,
        "behind": list(behind),
    }


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


class Pick(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor, at: torch.Tensor, by_value: torch.Tensor) -> torch.Tensor:
        y = x.log()
        return y[at] + y[y.sum().long() * 0 + by_value]


@pytest.mark.parametrize(("at", "by_value", "behind"), [(9, 0, []), (0, 9, ["log", "sum_1"])])
def test_only_what_an_index_is_computed_from_is_behind_it(
    tmp_path: Any, at: int, by_value: int, behind: list[str]
) -> None:
    """NaN in the tensor that is indexed is not behind the index."""
    given = (torch.tensor([-1.0, 2.0]), torch.tensor([at]), torch.tensor([by_value]))
    program = torch.export.export(Pick(), (torch.ones(2), torch.tensor([0]), torch.tensor([0])))
    report = tmp_path / "report.jsonl"
    with pytest.raises(IndexError):
        Watcher(program.module(), list(given), Report(str(report))).run(*given)
    (event,) = stream_events(report, NodeRaised)
    assert event.behind == behind
    assert [at, at] in event.integers or [by_value, by_value] in event.integers


SOURCE = [
    "def picked(x, rows):",
    "    return x[rows].sqrt()",
    "",
    "def forward(x, rows):",
    "    return picked(x, rows)",
]
INNER = SOURCE[1].strip()


@pytest.fixture
def party(tmp_path: Path) -> Component:
    """An input with the line of `forward` alone."""
    file = tmp_path / "model.py"
    file.write_text("\n".join(SOURCE))
    lines = [ModelLocation(file=str(file), line=5, code=SOURCE[4].strip())]
    return Component(kind="input", name="rows", model_locations=lines)


def test_the_only_line_comes_first_and_is_told_to_be_inferred(party: Component) -> None:
    """The recorded line stays behind it."""
    found, evidence = deepened(party, "index_out_of_bounds", DiagnosisState(None))
    assert [line.line for line in found.model_locations] == [2, 5]
    assert found.model_locations[0].code == INNER and "inferred" in evidence[0].fact
    assert evidence[0].command == f"sed -n 2p {found.model_locations[0].file}"


def test_nothing_is_inferred_where_all_lines_are_known(party: Component) -> None:
    """A program that compiled under the hook, another category, or a kernel that computed the index."""
    ran = DiagnosisState(None)
    ran.capture = capture(compiles=[phase(1, how="aot_compile")])
    assert deepened(party, "index_out_of_bounds", ran) == (party, [])
    assert deepened(party, "hang", DiagnosisState(None)) == (party, [])
    kernel = party.model_copy(update={"kind": "kernel"})
    assert deepened(kernel, "index_out_of_bounds", DiagnosisState(None)) == (kernel, [])
