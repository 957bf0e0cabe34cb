"""The values that a failed check saw: do the inputs hold an index outside the bound, or a divisor of zero?"""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.division import divisor_parts, failed_divisions
from mcp_server.diagnosis.index_parts import IndexPart, candidates, checked_inputs, whole_part
from mcp_server.diagnosis.operator_index import operator_indices
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.steps.context import Context


def parts_to_see(case: Case) -> list[IndexPart]:
    """Elements of inputs that a failed assertion of a kernel, or the check of an operator, saw."""
    asserted = [suspect.part for suspect in checked_inputs(case)]
    asserted += [part for candidate in candidates(case) if (part := whole_part(candidate, case)) is not None]
    refused = [index.part for index in operator_indices(case) if index.part is not None]
    divided = [part for division in failed_divisions(case) for part in divisor_parts(division, case)]
    return list(dict.fromkeys(asserted + refused + divided))


class LookAtIndices:
    """Hold the elements of the inputs that the kernel indexes with, or divides by, to what they may be."""

    name = "look_at_indices"
    seconds = 3.0
    alone = False

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        return 1.0 if case.call is not None and case.given is not None and parts_to_see(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        assert case.call is not None
        parts = parts_to_see(case)
        asked = case.call.inputs if case.call.inputs is not None else case.call.request.get("inputs")
        request = {"inputs": asked, "parts": [part.request() for part in parts]}
        done = await context.worker("index_values", request, name="index-values", **case.surroundings)
        for event in done.all("index_values"):
            case.index_values[IndexPart(**event["part"])] = event
