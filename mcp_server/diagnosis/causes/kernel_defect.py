"""Defects that the code of a kernel shows for the sizes of the failing call, without a run.

That the code has one does not say that the call fails of it: only the call without it does, or a fault that
was located at the same argument of the same launch.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.components import launch_component, seen
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.memory_faults.records import MissedArgument
from mcp_server.model import Category, Fix
from mcp_server.package.prover import Finding, FindingKind
from mcp_server.package.terms.term import itemsize_of

FIXES: dict[FindingKind, str] = {
    "overflow": "compute the index in 64 bits (in Triton `.to(tl.int64)`), or pass fewer elements",
    "beyond": "mask the access with the size of its argument, or allocate what the grid asks for",
    "order": "put `tl.debug_barrier()` between the two accesses, or store to another tensor",
    "never_stored": "compile with `inplace_buffers=False`, and report the kernel to PyTorch",
    "grid": "split the call along that dimension, or launch the kernel with it in x",
}
SETTLE = "the call with this launch in eager mode: try-fix --launch {} --as eager --exported program.pt2"


def detect_kernel_defect(case: DiagnosisState) -> Iterator[Suspect]:
    """One suspect for each defect that explains how the call fails."""
    for found, change in (case.kernel_defects or {}).items():
        category = explains(found.kind, case)
        if category is None:
            continue
        located, tried = _located(found, case), case.trials.get(change.key) if change is not None else None
        effect = tried.effect if tried is not None else None
        guilty = launch_component(found.launch, found.kernel, case)
        named = {"generated_location": found.location}
        if effect is Effect.SAME:  # a bystander, in a launch that may be at fault for something else
            named["name"] = f"{guilty.name}, line {found.line}"
        # What saw the launch itself go wrong says more, until the call without the defect has been made.
        wrong = effect is not Effect.GONE and (bool(located) or _is_judged_wrong(found.launch, case))
        deepest = effect is Effect.GONE or found.kind == "grid"
        yield Suspect(
            category=category,
            guilty=guilty.model_copy(update=named),
            summary=found.sentence,
            level=CausalLevel.BUILD
            if deepest
            else CausalLevel.FAULT_SITE
            if wrong
            else CausalLevel.BAD_VALUE,
            evidence=(
                seen("inspect_package", found.sentence, found.location),
                *((seen("locate_fault", located),) if located else ()),
            ),
            fix=Fix(action=FIXES[found.kind]) if not wrong else None,
            intervention=change,
            settle="" if change is not None else SETTLE.format(found.launch),
            observed=bool(located) or found.kind == "grid",
        )


def _is_judged_wrong(launch: int, case: DiagnosisState) -> bool:
    every = case.with_eager.every_launch if case.with_eager is not None else None
    return every is not None and any(each.launch == launch for each in every.wrong)


def explains(kind: FindingKind, case: DiagnosisState) -> Category | None:
    """The category of a failure that such a defect can explain; None where it cannot."""
    roots = [root for _, root in case.own_roots]
    if kind == "grid":
        refused = any(root.family.id == "launch_invalid_argument" for root in roots)
        return "shape_out_of_range" if refused else None
    accessed = any("illegal_memory_access" in root.candidates[:2] for root in roots)
    if kind in ("overflow", "beyond") and (accessed or case.failure_of("plain") == "signal"):
        return "illegal_memory_access"
    by_program = case.equals_eager is False and (case.failed or case.judged_by_program)
    numbers = case.failed and case.failure_of("plain") in ("differs", "nonfinite")
    return "wrong_output" if by_program or numbers else None


def _located(found: Finding, case: DiagnosisState) -> str:
    """What a located fault says of the argument of a defect; empty where it is another one."""
    fault = case.located.fault if case.located is not None else None
    missed = fault.missed if fault is not None else None
    if fault is None or missed is None or fault.launch is None or fault.launch.index != found.launch:
        return ""
    if missed.parameter != found.parameter:
        return ""
    wrapped = found.kind == "overflow" and is_a_turn_away(missed)
    away = f": 2**32 elements from it is one of {missed.label}" if wrapped else ""
    return f"the access to {missed.parameter} of launch {found.launch} is outside of its memory{away}"


def is_a_turn_away(missed: MissedArgument) -> bool:
    """Whether the element 2**32 before or behind the one accessed is one of the tensor."""
    if missed.element is None or not missed.holds_bytes or not missed.dtype:
        return False
    count = missed.holds_bytes // itemsize_of(missed.dtype)
    return any(0 <= missed.element + turn < count for turn in (1 << 32, -(1 << 32)))
