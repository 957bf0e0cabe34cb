"""Interventions on custom operators."""

from __future__ import annotations

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options


def as_promised() -> Intervention:
    """Results of custom operators laid out as their fake functions promise, with room around them."""
    return Intervention(
        key="operator:promised",
        kind=Kind.OPERATOR,
        what="the call with the operators' results laid out as their fake functions promise",
        options=Options(operators="repair"),
        before_code="return result",
        after_code="return result.to(promised.dtype).reshape(promised.shape).contiguous()",
        spelling=("--operators", "repair"),
    )
