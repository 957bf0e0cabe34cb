"""An input that the model updates in place, given at an address for which the package updates a copy."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind
from mcp_server.diagnosis.lost_updates import updated_in_a_copy
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, Party

CAME_BACK = ("none", "differs")  # what the check compared may be the input, held against outputs


def detect(case: Case) -> Iterator[Suspect]:
    """One for each such input that the call, made again as it was, leaves unchanged.

    Only of calls that come back: a failing one has another cause.
    """
    plain = case.runs.get("plain")
    if plain is None or plain.failure not in CAME_BACK or (case.failed and not _silent(case)):
        return
    for place, size in updated_in_a_copy(case).items():
        if place in plain.left_alone:
            yield _suspect(place, size, case)


def _silent(case: Case) -> bool:
    """Whether what failed is a check of the program's, and nothing inside of AOTInductor."""
    seen = case.capture
    return seen is not None and bool(seen.assertions or case.own_check) and seen.failing is None


def _suspect(place: int, size: int, case: Case) -> Suspect:
    assert case.package is not None
    item = case.package.inputs[place]
    call = case.capture.suspect if case.capture is not None else None
    offset = call.leaves[place].storage_offset if call is not None and place < len(call.leaves) else 0
    where = f"an address that is no multiple of {size} bytes" + (f" (offset {offset})" if offset else "")
    own = case.exported.in_place if case.exported is not None else []
    return Suspect(
        category="input_mismatch",
        guilty=Party(
            kind="input",
            name=item.path or item.name,
            input_index=place,
            value=f"at {where}",
            model_locations=[*own[:1], *case.call_locations],
        ),
        summary=f"The model updates {item.label} in place, and was given it at {where}: the package copies "
        "such an input and updates the copy, so that the caller's tensor stays as it was.",
        level=CausalLevel.CALL,
        evidence=(
            Evidence(
                step="inspect_package",
                fact=f"run_impl copies {item.label} where its address is no multiple of {size} bytes, "
                "and writes the copy",
            ),
            Evidence(step="run", fact=f"the call leaves input {place}, at such an address, as it was"),
        ),
        fix=Fix(
            action=f"give the call a tensor of its own and copy it back, or lay the views out so that each "
            f"begins at a multiple of {size} bytes",
            after=f"state = x.clone(); outputs = model(…, state, …); x.copy_(state)  # x: input {place}",
        ),
        intervention=Intervention(
            f"align {place}",
            Kind.INPUT,
            f"the call with an aligned copy of input {place}",
            (Change("align", input=place),),
        ),
        harmful=not case.ended_well,
    )
