"""A bad access that a checker saw, and who made its address bad."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.from_log import LEVELS
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import Leaf, keep_in_range
from mcp_server.diagnosis.parties import operator_of
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.faults.records import AddressPart, Blame, Fault
from mcp_server.model import Category, Evidence, Fix, Party, PartyKind

KINDS: dict[str, PartyKind] = {
    "kernel": "kernel",
    "upstream_kernel": "kernel",
    "op": "op",
    "input": "input",
    "constant": "constant",
    "unknown": "kernel",
}
FIXES: dict[str, str] = {
    "kernel": "correct the kernel's index arithmetic, or mask the access with the size of its argument",
    "upstream_kernel": "keep the values that this kernel computes within the size of what they index",
    "op": "make the fake function of the operator return the size and stride of the real result",
    "input": "keep these values, or this size, within what the kernel can address",
    "constant": "load weights of the shape and dtype that the package was compiled with",
    "inside_op": "check what {op} reads and writes against the sizes and strides that it is given",
    "unknown": "check the index arithmetic of the kernel and the values that it is given",
}


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for the first fault that was located."""
    fault = case.located.fault if case.located is not None else None
    if fault is None or (fault.kernel == "" and fault.launch is None):
        return
    blame = _blame(fault)
    category: Category = blame.category or "illegal_memory_access"
    guilty = _guilty(blame, fault, case)
    explained = any(m.severity == "fatal" or m.aspect == "range" for m in case.mismatches)
    yield Suspect(
        category=category,
        guilty=guilty,
        summary=fault.summary or fault.text,
        level=CausalLevel.FAULT_SITE if explained else max(LEVELS[category], CausalLevel.BAD_VALUE),
        evidence=tuple(_evidence(fault, blame)),
        crashing=_crashing(fault),
        fix=Fix(action=_remedy(guilty, fault, blame), before=fault.code.strip() or None),
        intervention=_clamp(fault, blame),
        observed=(fault.launch is not None and fault.launch.certain) or blame.confidence != "possible",
        weak=blame.kind == "unknown" and fault.launch is None,
    )


def _remedy(guilty: Party, fault: Fault, blame: Blame) -> str:
    """An operator in which the fault itself is has to mend its code; one that made a tensor, its promise."""
    crashed = fault.launch.index if fault.launch is not None else None
    inside = guilty.kind == "op" and blame.launch in (None, crashed)
    return FIXES["inside_op"].format(op=guilty.name) if inside else FIXES[blame.kind]


def _blame(fault: Fault) -> Blame:
    """The join's own judgement; an access through an empty tensor is the kernel's, which has to mask it."""
    blame = fault.blame or Blame(kind="unknown", name=fault.kernel)
    if fault.missed is None or fault.missed.side != "empty" or blame.kind != "input":
        return blame
    model = fault.launch.model if fault.launch else []
    reason = f"{fault.missed.label} is empty: there is no element that an index could name"
    return Blame(kind="kernel", name=fault.kernel, confidence="likely", reasons=[reason], model=model)


def _guilty(blame: Blame, fault: Fault, case: Case) -> Party:
    launch = blame.launch if blame.launch is not None else (fault.launch.index if fault.launch else None)
    own = blame.kind in ("kernel", "unknown")
    op = operator_of(launch, case) if own and launch is not None else ""
    return Party(
        kind="op" if op else KINDS[blame.kind],
        name=op or blame.name or fault.kernel,
        input_index=blame.input_index,
        dim=blame.dim,
        launch_index=launch if KINDS[blame.kind] == "kernel" else None,
        generated_location=_place(fault) if own else None,
        model_locations=(blame.model or (fault.launch.model if fault.launch else []))[:4],
    )


def _crashing(fault: Fault) -> Party:
    return Party(
        kind="kernel",
        name=fault.launch.kernel if fault.launch else fault.kernel,
        launch_index=fault.launch.index if fault.launch else None,
        generated_location=_place(fault),
        model_locations=(fault.launch.model if fault.launch else [])[:4],
    )


def _place(fault: Fault) -> str | None:
    if fault.location:
        return fault.location
    return f"{fault.generated_file}:{fault.generated_line}" if fault.generated_line else None


def _evidence(fault: Fault, blame: Blame) -> Iterator[Evidence]:
    yield Evidence(step="locate_fault", fact=fault.text[:300], source=fault.tool)
    if fault.code:
        yield Evidence(step="locate_fault", fact=f"{_place(fault)}: {fault.code.strip()[:200]}")
    if fault.nearest:
        yield Evidence(step="locate_fault", fact=fault.nearest[:300])
    for reason in blame.reasons[:3]:
        yield Evidence(step="locate_fault", fact=reason[:300])


def _clamp(fault: Fault, blame: Blame) -> Intervention | None:
    """The call with the index values of the blamed input kept inside."""
    part = next((p for p in fault.parts if _clampable(p, blame)), None)
    if part is None or part.limit is None:
        return None
    low, high = part.lowest or 0, part.limit - 1
    assert part.input_index is not None
    return keep_in_range(Leaf(part.input_index, blame.name), low, high)


def _clampable(part: AddressPart, blame: Blame) -> bool:
    return (
        blame.kind == "input"
        and part.kind == "index"
        and part.beyond is True
        and part.input_index is not None
        and part.input_index == blame.input_index
        and part.limit is not None
    )
