"""Inputs of one layout in each other's place: only what the program expected of the call can tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind
from mcp_server.diagnosis.parties import lines_reading
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, Party
from mcp_server.package.signature import CompiledInput

MOST_PAIRS = 3


def detect(case: Case) -> Iterator[Suspect]:
    """A pair that gives the expected result when exchanged; until that is tried, a mere possibility."""
    if not _open(case):
        return
    for first, second in list(_alike(case))[:MOST_PAIRS]:
        test = _exchanged(first, second, len(case.leaves))
        trial = case.trials.get(test.key)
        if trial is None or trial.proves:
            yield _suspect(first, second, test, case, tried=trial is not None)


def _open(case: Case) -> bool:
    """Whether the package computes what was exported, of inputs that fit, and the program expected more."""
    plain = case.runs.get("plain")
    expected = plain is not None and (plain.departs or not all(plain.held.values()))
    return expected and bool(case.equals_eager) and not case.mismatches


def _alike(case: Case) -> Iterator[tuple[CompiledInput, CompiledInput]]:
    """Inputs of more than one element that have one dtype, shape and stride in this call."""
    inputs = case.package.inputs if case.package is not None else ()
    if len(inputs) != len(case.leaves):
        return
    for first, second in combinations(inputs, 2):
        a, b = case.leaves[first.index], case.leaves[second.index]
        layouts = [tuple(str(leaf.get(part)) for part in ("dtype", "shape", "stride")) for leaf in (a, b)]
        if a.get("shape") and layouts[0] == layouts[1] and max(a["shape"]) > 1:
            yield first, second


def _exchanged(first: CompiledInput, second: CompiledInput, count: int) -> Intervention:
    order = list(range(count))
    order[first.index], order[second.index] = second.index, first.index
    return Intervention(
        f"exchange:{first.index}:{second.index}",
        Kind.INPUT,
        f"the call with inputs {first.index} and {second.index} exchanged",
        (Change("permute", order=tuple(order)),),
    )


def _suspect(
    first: CompiledInput, second: CompiledInput, test: Intervention, case: Case, *, tried: bool
) -> Suspect:
    names = f"{first.label} and {second.label}"
    return Suspect(
        category="input_mismatch",
        guilty=Party(
            kind="call",
            name=f"the order of {names}",
            input_index=first.index,
            model_locations=[*case.call_locations, *lines_reading(first.index, case)],
        ),
        summary=f"{names[:1].upper()}{names[1:]} are in each other's place: they have one layout, so that no "
        "check can tell.",
        level=CausalLevel.CALL,
        evidence=(Evidence(step="check_devices", fact=f"{names} have one dtype, shape and stride"),),
        fix=Fix(
            action=f"exchange {first.path or first.name} and {second.path or second.name}: a package takes "
            "inputs in the order of the export, keywords in the order in which that was given them"
        ),
        intervention=test,
        weak=not tried,
        settle="The call with the two exchanged would settle it.",
    )
