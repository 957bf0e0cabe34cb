"""The values that a failed index assertion checked: do the inputs hold one outside the bound?"""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.diagnosis.index_parts import IndexPart, candidates, suspects, whole_part
from mcp_server.diagnosis.operator_index import operator_indices
from mcp_server.steps.context import Context


def parts_to_see(case: Case) -> list[IndexPart]:
    """Elements of inputs that a failed assertion of a kernel, or the check of an operator, saw."""
    asserted = [suspect.part for suspect in suspects(case)]
    asserted += [part for candidate in candidates(case) if (part := whole_part(candidate, case)) is not None]
    refused = [index.part for index in operator_indices(case) if index.part is not None]
    return list(dict.fromkeys(asserted + refused))


class LookAtIndices:
    """Hold the elements of the inputs that the kernel indexes with against their bounds."""

    name = "look_at_indices"
    seconds = 3.0
    alone = False

    def gain(self, case: Case, _open: Sequence[Hypothesis]) -> float:
        return 1.0 if case.call is not None and case.given is not None and parts_to_see(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        assert case.call is not None
        parts = parts_to_see(case)
        asked = case.call.inputs if case.call.inputs is not None else case.call.request.get("inputs")
        request = {"inputs": asked, "parts": [part.request() for part in parts]}
        done = await context.worker("index_values", request, name="index-values", **case.surroundings)
        for event in done.all("index_values"):
            case.index_values[IndexPart(**event["part"])] = event
