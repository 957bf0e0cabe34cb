"""Bad accesses shown by a checker, the journal, a signal, or the code of a kernel without a run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mcp_server.diagnosis.causes.hang import call_hangs, lines_inside, looping, operator_inside
from mcp_server.diagnosis.causes.log_text import BY_CATEGORY
from mcp_server.diagnosis.components import component, launch_component, name_of, operator_of, seen
from mcp_server.diagnosis.from_origin import with_origin
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind
from mcp_server.diagnosis.interventions.input import Leaf, keep_in_range
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.facts import ThreadStack
from mcp_server.memory_faults import Blame, Fault, MissedArgument, summarise
from mcp_server.model import Category, Component, ComponentKind, Fix
from mcp_server.package.prover import Finding, FindingKind
from mcp_server.package.terms.term import itemsize_of
from mcp_server.plurals import quoted
from mcp_server.worker import events

FIXES: dict[str, str] = {
    "kernel": "correct the kernel's index arithmetic, or mask the access with the size of its argument",
    "upstream_kernel": "keep the values that this kernel computes within the size of what they index",
    "op": "make the fake function of the operator return the size and stride of the real result",
    "input": "keep these values, or this size, within what the kernel can address",
    "constant": "load weights of the shape and dtype that the package was compiled with",
    "unknown": "check the index arithmetic of the kernel and the values that it is given",
}
# Values with which programs mark unused indices: -1, and the extremes of integer types.
MARKERS = {-1, *((1 << bits) - 1 for bits in (8, 15, 16, 31, 32, 63)), *(-1 << bits for bits in (15, 31, 63))}
MASKED = "mask the access where the index is {0}, if {0} marks unused elements; else correct such indices"
INSIDE_OP = "check what {} reads and writes against the sizes and strides that it is given"


def detect_memory(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect the component behind the first located fault."""
    fault = case.located.fault if case.located is not None else None
    blamed = fault.blame.input_index if fault is not None and fault.blame is not None else None
    if fault is None or (fault.kernel == "" and fault.launch is None) or blamed in case.unowned:
        return  # nothing is located, or the memory of the input was gone, which explains the access
    change, marker = _passing_change(fault, case), marker_of(fault)
    blame = _blame(fault, change, marker)
    category: Category = blame.category or "illegal_memory_access"
    guilty = _guilty(blame, fault, case)
    # If the operator itself faults, fix its code. If its result misleads a launch, fix its fake function.
    crashed = fault.launch.index if fault.launch is not None else None
    kernel, model = (fault.launch.kernel, fault.launch.model) if fault.launch else (fault.kernel, [])
    inside = guilty.kind == "op" and blame.launch in (None, crashed)
    action = INSIDE_OP.format(guilty.name) if inside else FIXES[blame.kind]
    action = MASKED.format(marker) if change is not None and marker else action
    evidence = [seen("locate_fault", quoted(fault.text), fault.tool)]
    if fault.code:
        evidence.append(seen("locate_fault", f"{_place(fault)}: {fault.code.strip()[:200]}"))
    for fact in (*([fault.nearest] if fault.nearest else []), *blame.reasons[:3]):
        evidence.append(seen("locate_fault", quoted(fact)))
    summary = summarise(fault.model_copy(update={"blame": blame})) if change is not None else fault.summary
    explained = any(m.severity == "fatal" or m.aspect == "range" for m in case.mismatches)
    suspect = Suspect(
        category=category,
        guilty=guilty,
        summary=summary or fault.text,
        level=CausalLevel.FAULT_SITE if explained else max(BY_CATEGORY[category][1], CausalLevel.BAD_VALUE),
        evidence=tuple(evidence),
        crashing=component("kernel", kernel, model[:4], launch=crashed, at=_place(fault)),
        fix=fix_with(action, change, case, fault.code.strip()),
        intervention=change or _clamp(fault, blame, _user_name(blame, case)),
        observed=(fault.launch is not None and fault.launch.certain) or blame.confidence != "possible",
        weak=blame.kind == "unknown" and fault.launch is None,
    )
    # A kernel at fault computes the address itself, so its inputs do not matter.
    found = suspect if blame.kind == "kernel" else with_origin(suspect, case, crashed)
    if blame.kind == "input" and marker and found.fix is not None and in_users_kernel(fault, case):
        text = f"{found.fix.text}; if {marker} marks unused elements, mask them in the kernel"
        found = replace(found, fix=found.fix.model_copy(update={"text": text}))
    yield found


def in_users_kernel(fault: Fault, case: DiagnosisState) -> bool:
    users = {each.kernel for each in case.launches if each.kind == "user_triton"}
    return fault.launch is not None and fault.launch.kernel in users


def marker_of(fault: Fault) -> str:
    """The only out-of-range index, if it is a marker of unused elements. Empty otherwise."""
    for part in fault.parts:
        if part.kind == "index" and part.beyond and part.limit is not None:
            ends = {end for end in (part.minimum, part.maximum) if end is not None}
            outside = {end for end in ends if not (part.lowest or 0) <= end < part.limit}
            return str(min(outside)) if len(outside) == 1 and outside <= MARKERS else ""
    return ""


def _passing_change(fault: Fault, case: DiagnosisState) -> Intervention | None:
    """The change of the user's kernel with which the program passed. None if no change did."""
    name = fault.launch.kernel if fault.launch is not None else ""
    tried = [change for (kernel, _), change in case.users_changes.items() if kernel == name]
    return next((each for each in tried if case.trials[each.key].gone), None)


def _blame(fault: Fault, change: Intervention | None, marker: str) -> Blame:
    """The blame of the located fault, or of the kernel if it lacks a mask.

    It lacks one if the tensor is empty, or if the program passes with a mask.
    """
    blame = fault.blame or Blame(kind="unknown", name=fault.kernel)
    empty = fault.missed is not None and fault.missed.side == "empty"
    if blame.kind != "input" or not (empty or change is not None):
        return blame
    model = fault.launch.model if fault.launch else []
    reason = f"{fault.missed.label if fault.missed else ''} is empty, so no index into it is valid"
    if change is not None:
        reason = f"its mask lets the index {marker} through" if marker else "this access needs a mask"
    return Blame(kind="kernel", name=fault.kernel, confidence="likely", reasons=[reason], model=model)


def _guilty(blame: Blame, fault: Fault, case: DiagnosisState) -> Component:
    launch = blame.launch if blame.launch is not None else (fault.launch.index if fault.launch else None)
    own = blame.kind in ("kernel", "unknown")
    kind: ComponentKind = "kernel"
    if blame.kind in ("op", "input", "constant"):
        kind = blame.kind
    op = operator_of(launch, case) if own and launch is not None else ""
    return component(
        "op" if op else kind,
        op or _user_name(blame, case) or fault.kernel,
        (blame.model or (fault.launch.model if fault.launch else []))[:4],
        index=blame.input_index,
        dim=blame.dim,
        launch=launch if kind == "kernel" else None,
        at=_place(fault) if own else None,
    )


def _user_name(blame: Blame, case: DiagnosisState) -> str:
    """The name of an input as the user writes it, if the signature has it."""
    item = next((each for each in case.compiled_inputs if each.index == blame.input_index), None)
    return name_of(item) if blame.kind == "input" and item is not None else blame.name


def _place(fault: Fault) -> str | None:
    if fault.location:
        return fault.location
    return f"{fault.generated_file}:{fault.generated_line}" if fault.generated_line else None


def _clamp(fault: Fault, blame: Blame, name: str) -> Intervention | None:
    """The call with index values of the blamed input kept in range."""
    for part in fault.parts if blame.kind == "input" else ():
        own = part.input_index is not None and part.input_index == blame.input_index
        if own and part.kind == "index" and part.beyond is True and part.limit is not None:
            assert part.input_index is not None
            return keep_in_range(Leaf(part.input_index, name), part.lowest or 0, part.limit - 1)
    return None


def detect_died_inside(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect the operator that the package calls, if the thread that died was inside it."""
    stacks = died(case)
    op = operator_inside(stacks, case)
    if not op:
        return
    signal = case.runs["plain"].finished.signal or "a signal"
    lines = lines_inside(stacks)
    at = f", at {lines[0].file}:{lines[0].line}" if lines else ""
    yield Suspect(
        # Other signals say nothing about memory.
        category="illegal_memory_access" if signal in ("SIGSEGV", "SIGBUS") else "custom_op",
        guilty=component("op", op, lines),
        summary=f"The process died with {signal} inside operator {op}{at}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(seen("run", f"the thread that died with {signal} was inside {op}{at}"),),
        fix=Fix(text=INSIDE_OP.format(op)),
    )


def died(case: DiagnosisState) -> list[ThreadStack]:
    """The stack of the thread in which the signal ended the plain run. Empty for a late error of CUDA."""
    plain = case.plain_run
    late = plain is not None and plain.root is not None and plain.root.family.late
    if plain is None or plain.failure != "signal" or late:
        return []
    return [thread for thread in plain.log.threads if thread.current]


ENDED_INSIDE = frozenset({"died", "fault", "threw"})


def detect_last_launch(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect the launch that did not return, or after which the device reported an error."""
    trace, plain = case.trace, case.plain_run
    if trace is None or trace.last is None or trace.how not in ENDED_INSIDE or looping(case):
        return
    hangs = call_hangs(case)
    root = plain.root if plain is not None else None
    # Other errors, such as an index assertion, have other detectors.
    another = root is not None and "illegal_memory_access" not in root.candidates
    if not hangs and (plain is None or another):
        return
    category: Category = "illegal_memory_access"
    meaning = "that kernel reads or writes outside its tensors, or was given bad values"
    fix = "check the kernel's index arithmetic and masks against the sizes of its arguments"
    if hangs:
        category, meaning = "hang", "that kernel does not end"
        fix = "make its loop or barrier end for these sizes and values"
        made = [each for each in case.eager_events(events.NodeNonFinite) if each.nan and not each.bad_inputs]
        for frame in made[0].stack[:1] if made else ():
            place = f"{Path(frame.file).name}:{frame.line}"
            meaning += f". Before it, {made[0].op} ({place}) gives NaN, with which a search never ends"
            fix = f"keep NaN out of its inputs (see {place}), and limit the iterations of its loop"
    party = launch_component(trace.last.launch, trace.last.kernel, case)
    shown = "; ".join(trace.last.arguments[:6])
    arguments = (seen("trace_launches", f"its arguments: {shown}"),) if shown else ()
    yield Suspect(
        category=category,
        guilty=party,
        summary=f"{trace.summary.rstrip('.')}: {meaning}.",
        level=CausalLevel.STATE if hangs else CausalLevel.FAULT_SITE,
        evidence=(seen("trace_launches", trace.summary), *arguments),
        crashing=party,
        fix=Fix(text=fix),
        observed=hangs or trace.how == "fault",
    )


# Defects that the code of a kernel shows for the sizes of the failing call. A defect does not prove that
# it makes the call fail. Proof is a call without the defect, or a fault located there.
DEFECT_FIXES: dict[FindingKind, str] = {
    "overflow": "compute the index in 64 bits (in Triton `.to(tl.int64)`), or pass fewer elements",
    "beyond": "mask the access with the size of its argument, or allocate what the grid asks for",
    "never_stored": "compile with `inplace_buffers=False`, and report the kernel to PyTorch",
    "grid": "split the call along that dimension, or launch the kernel with it in x",
    "narrow": "convert what it is computed from to 64 bits first, with `.long()`",
    "uncovered": "cover the whole output: `triton.cdiv(n, BLOCK)` programs, a BLOCK of at least "
    "`triton.next_power_of_2` of the row that one program handles, and the output's size in the mask",
    "clash": "add the parts with `tl.atomic_add` to an output of zeros, or give each program its elements",
    "lost": "replace load, add and store with `tl.atomic_add`",
    "unset": "allocate it with `torch.zeros` instead of `torch.empty`",
    "gap": "pass the strides of the tensor to the kernel and index with them, or pass `.contiguous()`",
    "raced": "store to a new tensor instead of the one that the kernel reads",
    "retyped": "use the pointer as it is passed, without a conversion to another dtype",
}
OF_USERS = frozenset({"uncovered", "clash", "lost", "unset", "gap", "raced", "retyped", "beyond"})
DEFINITE = OF_USERS - {"lost", "beyond"}
CORRECTED = "the call with a corrected kernel or launch"
SETTLE = "the call with this launch in eager mode: try-fix --launch {} --as eager --exported program.pt2"


def detect_kernel_defect(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect each defect of a kernel that can explain the failure."""
    for found, mended in (case.kernel_defects or {}).items():
        change = mended or case.users_changes.get((found.kernel, found.kind))
        category = explains(found.kind, case)
        if category is None or (found.kind == "narrow" and change is None):
            continue
        located, tried = _located(found, case), case.trials.get(change.key) if change is not None else None
        effect = tried.effect if tried is not None else None
        guilty = launch_component(found.launch, found.kernel, case)
        named = {"generated_location": found.location}
        if effect is Effect.SAME:  # a bystander; the launch may have another fault
            named["name"] = f"{guilty.name}, line {found.line}"
        # A launch that was seen to go wrong explains more, unless the call passes without the defect.
        judged = any(each.launch == found.launch for each in case.wrong_launches)
        wrong = effect is not Effect.GONE and (bool(located) or judged)
        level = CausalLevel.FAULT_SITE if wrong else CausalLevel.BAD_VALUE
        if effect is Effect.GONE or found.kind == "grid":
            level = CausalLevel.BUILD
        elif found.kind in DEFINITE:
            level = CausalLevel.STATE  # this code made the wrong values that were seen
        # Eager mode also runs the user's kernels, so it settles nothing about them.
        settle = CORRECTED if found.kind in OF_USERS else SETTLE.format(found.launch)
        facts = [seen("inspect_package", found.sentence, found.location)]
        facts += [seen("locate_fault", located)] if located else []
        yield Suspect(
            category=category,
            guilty=guilty.model_copy(update=named),
            summary=found.sentence,
            level=level,
            evidence=tuple(facts),
            fix=fix_with(DEFECT_FIXES[found.kind], change, case) if not wrong else None,
            intervention=change,
            settle="" if change is not None else settle,
            observed=bool(located) or found.kind in {"grid", "beyond"} | DEFINITE,
        )


def fix_with(text: str, change: Intervention | None, case: DiagnosisState, before: str = "") -> Fix:
    """The fix in words, and the lines of the change of the user's kernel with which the program passed."""
    tried = case.trials.get(change.key) if change is not None else None
    if change is None or change.kind is not Kind.SOURCE or tried is None or not tried.gone:
        return Fix(text=text, before=before or None)
    return Fix(text=text, before=change.before_code, after=change.after_code)


def numbers_doubted(case: DiagnosisState) -> bool:
    """Whether wrong numbers may explain the failure: the error is a failed comparison, or there is none."""
    roots = [root for _, root in case.own_roots]
    unexplained = not roots and case.failure_of("plain") == "none"
    return case.failed and (unexplained or any("wrong_output" in root.candidates for root in roots))


def explains(kind: FindingKind, case: DiagnosisState) -> Category | None:
    """The category of failure that a defect of this kind can explain, or None."""
    roots = [root for _, root in case.own_roots]
    if kind == "grid":
        refused = any(root.family.id == "launch_invalid_argument" for root in roots)
        return "shape_out_of_range" if refused else None
    if kind == "narrow":
        return "wrong_output" if case.failed and case.failure_of("plain") == "differs" else None
    accessed = any("illegal_memory_access" in root.candidates[:2] for root in roots)
    if kind in ("overflow", "beyond") and (accessed or case.failure_of("plain") == "signal"):
        return "illegal_memory_access"
    by_program = case.equals_eager is False and (case.failed or case.judged_by_program)
    numbers = case.failed and case.failure_of("plain") in ("differs", "nonfinite")
    users = any(each.kind == "user_triton" for each in case.launches)
    doubted = kind in OF_USERS and users and numbers_doubted(case)
    return "wrong_output" if by_program or numbers or doubted else None


def _located(found: Finding, case: DiagnosisState) -> str:
    """A sentence if the located fault hit the argument of the defect. Empty if it hit another."""
    fault = case.located.fault if case.located is not None else None
    missed = fault.missed if fault is not None else None
    if fault is None or missed is None or fault.launch is None or fault.launch.index != found.launch:
        return ""
    if missed.parameter != found.parameter:
        return ""
    wrapped = found.kind == "overflow" and is_a_turn_away(missed)
    away = (
        f"; 2**32 elements away it would be inside {missed.label}, so a 32-bit index overflowed"
        if wrapped
        else ""
    )
    return f"the access to {missed.parameter} of launch {found.launch} is outside its memory{away}"


def is_a_turn_away(missed: MissedArgument) -> bool:
    """Whether the element 2**32 before or after the accessed one is inside the tensor."""
    if missed.element is None or not missed.holds_bytes or not missed.dtype:
        return False
    count = missed.holds_bytes // itemsize_of(missed.dtype)
    return any(0 <= missed.element + turn < count for turn in (1 << 32, -(1 << 32)))
