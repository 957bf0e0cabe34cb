"""Bad accesses: seen by a checker, by the journal of launches, or by the signal that ended the call."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.causes.hang import call_hangs, lines_inside, looping, operator_inside
from mcp_server.diagnosis.causes.log_text import LEVELS
from mcp_server.diagnosis.components import launch_component, operator_of
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import Leaf, keep_in_range
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCall
from mcp_server.logs.facts import ThreadStack
from mcp_server.memory_faults.records import AddressPart, Blame, Fault
from mcp_server.model import Category, Component, ComponentKind, Evidence, Fix
from mcp_server.tools.trace_launches import LaunchRow

KINDS: dict[str, ComponentKind] = {
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


def detect_memory(case: DiagnosisState) -> Iterator[Suspect]:
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


def _remedy(guilty: Component, fault: Fault, blame: Blame) -> str:
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


def _guilty(blame: Blame, fault: Fault, case: DiagnosisState) -> Component:
    launch = blame.launch if blame.launch is not None else (fault.launch.index if fault.launch else None)
    own = blame.kind in ("kernel", "unknown")
    op = operator_of(launch, case) if own and launch is not None else ""
    return Component(
        kind="op" if op else KINDS[blame.kind],
        name=op or blame.name or fault.kernel,
        input_index=blame.input_index,
        dim=blame.dim,
        launch_index=launch if KINDS[blame.kind] == "kernel" else None,
        generated_location=_place(fault) if own else None,
        model_locations=(blame.model or (fault.launch.model if fault.launch else []))[:4],
    )


def _crashing(fault: Fault) -> Component:
    return Component(
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


def detect_unmapped(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, for the call that did not come back."""
    call = case.capture.failing if case.capture is not None else None
    if call is not None and call.unmapped and call.outcome == "unfinished":
        yield _suspect(call, call.unmapped[0], case)


def _suspect(call: CapturedCall, place: int, case: DiagnosisState) -> Suspect:
    name = f"input {place}"
    signal = case.runs["script"].finished.signal if "script" in case.runs else None
    fact = f"when the call began, the memory of {name}{_layout(call, place)} was not mapped"
    return Suspect(
        category="illegal_memory_access",
        guilty=Component(
            kind="input", name=name, input_index=place, value="not mapped", model_locations=call.stack
        ),
        summary=f"The memory behind {name} was given back to the system before the call, which died of it"
        f"{f' with {signal}' if signal else ''}.",
        level=CausalLevel.CALL,
        only_in_program=True,
        evidence=(
            Evidence(step="capture", fact=fact),
            *((Evidence(step="run", fact=f"the program died of {signal} in that call"),) if signal else ()),
        ),
        fix=Fix(
            action="keep what owns the memory (a mapping, shared memory, a file, an array) open and whole "
            "until the call has returned, or give the call a copy",
            after="x.clone()",
        ),
    )


def _layout(call: CapturedCall, place: int) -> str:
    leaf = call.leaves[place] if place < len(call.leaves) else None
    return f" ({leaf.dtype} {leaf.shape})" if leaf is not None else ""


# What these signals say of the code that they end; any other one is the operator's own affair.
_OF_MEMORY = frozenset({"SIGSEGV", "SIGBUS"})


def detect_died_inside(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where the thread that died was inside an operator that the package calls."""
    stacks = died(case)
    op = operator_inside(stacks, case)
    if not op:
        return
    signal = case.runs["plain"].finished.signal or "a signal"
    category: Category = "illegal_memory_access" if signal in _OF_MEMORY else "custom_op"
    lines = lines_inside(stacks)
    at = f", at {lines[0].file}:{lines[0].line}" if lines else ""
    yield Suspect(
        category=category,
        guilty=Component(kind="op", name=op, model_locations=lines),
        summary=f"The process died of {signal} inside operator {op}{at}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(Evidence(step="run", fact=f"the thread that died of {signal} was inside {op}{at}"),),
        fix=Fix(action=f"check what {op} reads and writes against the sizes and strides that it is given"),
    )


def died(case: DiagnosisState) -> list[ThreadStack]:
    """The stack of the thread that the signal of the plain run ended.

    An error of a CUDA kernel ends the process at whatever call comes next: where that is says nothing.
    """
    plain = case.runs.get("plain")
    late = plain is not None and plain.root is not None and plain.root.family.late
    if plain is None or plain.failure != "signal" or late:
        return []
    return [thread for thread in plain.log.threads if thread.current]


ENDED_INSIDE = frozenset({"died", "fault", "threw"})


def detect_last_launch(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for the launch that did not come back, or after which the device was in error."""
    trace = case.trace
    if trace is None or trace.last is None or trace.how not in ENDED_INSIDE or looping(case):
        return
    category = _category(case)
    if category is None:
        return
    party = launch_component(trace.last.launch, trace.last.kernel, case)
    yield Suspect(
        category=category,
        guilty=party,
        summary=f"{trace.summary.rstrip('.')}: {_meaning(category)}.",
        level=CausalLevel.STATE if category == "hang" else CausalLevel.FAULT_SITE,
        evidence=(Evidence(step="trace_launches", fact=trace.summary), *_arguments(trace.last)),
        crashing=party,
        fix=_fix(category),
        observed=category == "hang" or trace.how == "fault",
    )


def _category(case: DiagnosisState) -> Category | None:
    """What a call that ended there failed with; an index assertion has its own detector."""
    if call_hangs(case):
        return "hang"
    plain = case.runs.get("plain")
    if plain is None:
        return None
    root = plain.root
    if root is not None and "illegal_memory_access" not in root.candidates:
        return None
    return "illegal_memory_access"


def _meaning(category: Category) -> str:
    if category == "hang":
        return "that kernel does not end"
    return "that kernel reads or writes memory that is not its own, or was given bad values"


def _arguments(row: LaunchRow) -> tuple[Evidence, ...]:
    shown = "; ".join(row.arguments[:6])
    return (Evidence(step="trace_launches", fact=f"its arguments: {shown}"),) if shown else ()


def _fix(category: Category) -> Fix:
    if category == "hang":
        return Fix(action="give the kernel's loop or barrier an end for this size of input")
    return Fix(action="check the kernel's index arithmetic and masks against the sizes of its arguments")
