"""The line in a helper that a verdict names first, and when none is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.value_sources import deepened
from mcp_server.model import Component, ModelLocation
from tests.diagnosis.support import capture, phase, worker_run

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


@pytest.mark.parametrize("op", ["aten.sqrt.default", "aten.exp.default"])
def test_eager_names_the_operator(party: Component, op: str) -> None:
    """With the operator known only a line that does it counts."""
    case = DiagnosisState(None)
    event: dict[str, Any] = {"event": "node_non_finite", "op": op, "bad_inputs": [], "masked": False}
    case.interpreted = worker_run({**event, "node": "n", "stack": []})
    found, _ = deepened(party, "nan_or_inf", case)
    assert len(found.model_locations) == (2 if "sqrt" in op else 1)


def test_nothing_is_inferred_where_all_lines_are_known(party: Component) -> None:
    """A program that compiled under the hook, another category, or a kernel that computed the index."""
    ran = DiagnosisState(None)
    ran.capture = capture(compiles=[phase(1, how="aot_compile")])
    assert deepened(party, "index_out_of_bounds", ran) == (party, [])
    assert deepened(party, "hang", DiagnosisState(None)) == (party, [])
    kernel = party.model_copy(update={"kind": "kernel"})
    assert deepened(kernel, "index_out_of_bounds", DiagnosisState(None)) == (kernel, [])
