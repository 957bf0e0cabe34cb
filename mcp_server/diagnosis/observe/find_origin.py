"""From a failed index check or a first bad value to where it was computed, and the change that removes it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace

from mcp_server.diagnosis.causes.index_out_of_bounds import beyond
from mcp_server.diagnosis.from_origin import made_good
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import Leaf
from mcp_server.diagnosis.interventions.kernel import (
    correct_expression,
    guard_operation,
    replace_launch,
    with_constant_of_siblings,
)
from mcp_server.diagnosis.observe import Observation
from mcp_server.diagnosis.observe.intervene import tried_call
from mcp_server.diagnosis.observe.static import parts_to_see
from mcp_server.diagnosis.origin import Origin
from mcp_server.diagnosis.origin.find import Fault, behind, find_origin
from mcp_server.diagnosis.origin.values import NoValues, ProbedValues, Tensor, Values
from mcp_server.diagnosis.ranking import untried
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.value_sources import candidates, checked_inputs, operator_indices
from mcp_server.errors import ProblemError
from mcp_server.package.view import PackageView
from mcp_server.tools.context import Context
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.first_bad import Choice

MOST_FAULTS = 4
MOST_LAUNCHES = 64  # whose values are kept
ARGUMENTS = 64  # of one launch
SCANNED = 1 << 16  # elements of an index that are looked at


class FindOrigin(Observation):
    """Keep the values of the launches behind the fault in one run, and walk back to where it was computed."""

    name = "find_origin"
    seconds = 3.0
    alone = True

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if case.call is None or case.view is None or "plain" not in case.runs:
            return 0.0
        if case.given is not None and parts_to_see(case) and "look_at_indices" not in case.done:
            return 0.0
        if not faults(case):
            return 0.0
        # What is nearer to the root cause can be tried first: it would explain the bad value.
        deeper = any(each.level >= CausalLevel.STATE and untried(each, case) for each in open_suspects)
        return 0.3 if deeper else 0.9

    async def act(self, case: DiagnosisState, context: Context) -> None:
        view = case.view
        assert view is not None
        sought = faults(case)
        values, reached = await _values(sought, view, case, context)
        if case.device == "cpu" and reached.intersection(each.launch for each in sought):
            # One kernel may be launched by many layers: the call ended in the last of these that began.
            last = max(reached.intersection(each.launch for each in sought))
            sought = [each for each in sought if each.launch == last]
        for fault in sought[:MOST_FAULTS]:
            placed = _placed(fault, view, values)
            case.origin = find_origin(view, placed, values) if placed is not None else None
            if case.origin is not None:
                await _find_changes(case.origin, values, case, context)
                return


def faults(case: DiagnosisState) -> list[Fault]:
    """What went wrong, as far as it is one value of a launch; empty where an input itself is at fault."""
    refused = operator_indices(case)
    direct = [each.part for each in checked_inputs(case)]
    direct += [each.part for each in refused if each.part is not None]
    if any(case.index_values.get(part, {}).get("outside") for part in direct):
        return []
    first = case.kernel_io.first_bad if case.kernel_io is not None else None
    if first is not None and first.kind == "kernel" and first.what == "non_finite":
        fault = Fault.of_first_bad(first)
        return [fault] if fault is not None and not case.nan_accepted else []
    found = [Fault.of_candidate(candidate) for candidate in candidates(case)]
    if not found:
        found = _missed(case)
    if not found:
        found = [
            Fault(each.launch.index, "value", buffer=each.argument.target, low=0, high=each.bound)
            for each in refused
            if each.argument.target and each.producers
        ]
    if not found:  # indices of launches that write where they say
        found = [
            Fault(each.seen.launch, "value", buffer=each.index.name, low=each.low, high=each.high)
            for each in beyond(case)
            if each.seen.launch is not None
        ]
    return list(dict.fromkeys(found))[:MOST_LAUNCHES]


def _missed(case: DiagnosisState) -> list[Fault]:
    """The access at a loaded index that a memory checker saw miss its tensor."""
    seen = case.located.fault if case.located is not None else None
    if seen is None or seen.launch is None or seen.missed is None:
        return []
    if seen.blame is not None and seen.blame.kind == "kernel":
        return []  # the kernel is at fault itself, whatever it got
    missed = seen.missed
    if missed.shape is None or not missed.stride or not any(part.kind == "index" for part in seen.parts):
        return []
    shape, stride = tuple(missed.shape), tuple(missed.stride)
    return [Fault(seen.launch.index, "access", parameter=missed.parameter, shape=shape, stride=stride)]


async def _values(
    sought: Sequence[Fault], view: PackageView, case: DiagnosisState, context: Context
) -> tuple[Values, set[int]]:
    """What the launches behind the faults read and wrote, and which began; nothing without probes."""
    launches = sorted({number for fault in sought for number in behind(view, fault)})[-MOST_LAUNCHES:]
    try:
        seen = await dump_kernel_io(
            context,
            case.package_call,
            Choice(launches=launches),
            save=True,
            backend="probes",
            shown=len(launches) * ARGUMENTS,
        )
    except ProblemError as problem:
        case.notes.append(f"the origin follows from the code alone: {problem}")
        return NoValues(), set()
    return ProbedValues(seen.launches), {each.launch for each in seen.launches if each.launch is not None}


def _placed(fault: Fault, view: PackageView, values: Values) -> Fault | None:
    """The fault with its first element; None where no value is at fault."""
    if fault.kind != "value" or fault.element:
        return fault
    launch = view.wrapper.launches[fault.launch]
    argument = next((each for each in launch.tensors if each.target == fault.buffer), None)
    tensor = values.tensor(fault.launch, argument, fault.when) if argument is not None else None
    if tensor is None or fault.low is None or fault.high is None:
        return None
    for place in range(min(tensor.count, SCANNED)):
        value = tensor.at(place)
        if value is not None and not fault.low <= value < fault.high:
            return replace(fault, element=tensor.unraveled(place))
    return None


async def _find_changes(origin: Origin, values: Values, case: DiagnosisState, context: Context) -> None:
    """What would remove the bad value, and the corrected expression where that is at fault."""
    inputs = case.compiled_inputs
    leaves = [Leaf(place, each.path or each.name) for place, each in enumerate(inputs)]
    made = made_good(origin, leaves, lambda place: _seen(inputs[place].name, values, case))
    case.origin_changes = [made] if made is not None else []
    # An index that is NaN, kept within its bound, would be as wrong as before.
    of_nan = origin.result == "index" and bool(origin.explanation)
    if case.device != "cpu" or not case.call_fails or of_nan:
        return
    # Alone, a correction in the crashing kernel would be a guard at the crash site.
    elsewhere = origin.launch_index != origin.fault_launch
    if origin.correction is not None and (made is not None or elsewhere):
        case.origin_fix = await _made_if_possible(correct_expression(context, tried_call(case), origin), case)
        return
    # No element of several is at fault by itself: the operation that left its domain is guarded first.
    if made is None or (origin.operation is not None and origin.element_count > 1):
        case.origin_changes = [*await _edits(origin, case, context), *case.origin_changes]


async def _edits(origin: Origin, case: DiagnosisState, context: Context) -> list[Intervention]:
    """The kernel edited, which is a matter of seconds; the best first."""
    call, found = tried_call(case), []
    launch = origin.fault_launch
    if origin.result != "index" and origin.launch_index is not None:
        launch = origin.launch_index
    if origin.odd_constant is not None and origin.result != "index":
        found.append(with_constant_of_siblings(context, call, origin))
    if origin.operation is not None:
        found.append(guard_operation(context, call, origin.operation))
    elif not found:
        how = "guard" if origin.result == "index" else "finite-mask"
        found.append(replace_launch(context, call, launch, how))
    made = [await _made_if_possible(each, case) for each in found]
    return [each for each in made if each is not None]


async def _made_if_possible(making: Awaitable[Intervention], case: DiagnosisState) -> Intervention | None:
    """The edit, unless its kernel cannot be changed so."""
    try:
        edited = await making
    except ProblemError as problem:
        case.notes.append(f"a kernel at the origin was not edited: {problem}")
        return None
    return None if edited.unavailable else edited


def _seen(name: str, values: Values, case: DiagnosisState) -> Tensor | None:
    """An input as any launch read it."""
    for launch in case.launches:
        for argument in launch.tensors:
            found = values.tensor(launch.index, argument, "before") if argument.target == name else None
            if found is not None:
                return found
    return None
