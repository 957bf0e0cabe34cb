"""Arguments that are no tensors: AOTInductor computes with their values at export, whatever it is given."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Hypothesis]:
    """One hypothesis per argument whose value is not the exported one."""
    if case.exported is None:
        return
    for place, fixed in case.exported.fixed:
        given = _given(case, place)
        if given is not None and given != repr(fixed):
            yield _hypothesis(place, fixed, given, case)


def _given(case: Case, place: int) -> str | None:
    """What the caller passed there, as text; None when the call's tree was not kept."""
    if place >= len(case.leaves) or case.leaves[place].get("kind") == "tensor":
        return None
    return str(case.leaves[place].get("value"))


def _hypothesis(place: int, fixed: object, given: str, case: Case) -> Hypothesis:
    paths = case.given.paths if case.given is not None else ()
    path = paths[place] if place < len(paths) else f"argument {place}"
    fact = (
        f"argument {place} ({path}) is {given}; it was {fixed!r} at export, which the package computes with"
    )
    return Hypothesis(
        category="input_mismatch",
        guilty=Party(
            kind="input",
            name=path,
            input_index=place,
            value=f"{given} (exported: {fixed!r})",
            model_locations=case.call_locations,
        ),
        summary=f"Argument {place} was fixed to {fixed!r} when the model was exported; the {given} that is "
        "passed is dropped without a word.",
        depth=Depth.CALL,
        sources=frozenset({"exported program", "capture"}),
        evidence=(Evidence(step="read_exported", fact=fact),),
        fix=Fix(action="pass it as a tensor, or export one package for each value"),
        harmful=case.failed,
    )
