"""From a failed index check or a first bad value to where it was computed, and the change that removes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcp_server.diagnosis.causes.index_out_of_bounds import beyond
from mcp_server.diagnosis.from_origin import made_good
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import Leaf
from mcp_server.diagnosis.interventions.kernel import (
    guard_operation,
    replace_launch,
    with_constant_of_siblings,
)
from mcp_server.diagnosis.observe.intervene import tried_call
from mcp_server.diagnosis.observe.static import parts_to_see
from mcp_server.diagnosis.origin.find import Fault, behind, find_origin
from mcp_server.diagnosis.origin.records import Origin
from mcp_server.diagnosis.origin.values import NoValues, ProbedValues, Tensor, Values
from mcp_server.diagnosis.planner import Observation
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
        values = await _values(sought, view, case, context)
        for fault in sought:
            placed = _placed(fault, view, values)
            case.origin = find_origin(view, placed, values) if placed is not None else None
            if case.origin is not None:
                case.origin_changes = await _changes(case.origin, values, case, context)
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
    return list(dict.fromkeys(found))[:MOST_FAULTS]


async def _values(
    sought: Sequence[Fault], view: PackageView, case: DiagnosisState, context: Context
) -> Values:
    """What the launches behind the faults read and wrote; nothing where no probes can be put in."""
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
        return NoValues()
    return ProbedValues(seen.launches)


def _placed(fault: Fault, view: PackageView, values: Values) -> Fault | None:
    """The fault with its first element; None where no value is at fault."""
    if fault.kind == "check" or fault.element:
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


async def _changes(
    origin: Origin, values: Values, case: DiagnosisState, context: Context
) -> list[Intervention]:
    """What would remove the bad value, the best first.

    The offending elements made good; else the kernel edited, where that is a matter of seconds. An operation
    of several elements that left its domain is guarded first: no element of them is at fault by itself.
    """
    inputs = case.compiled_inputs
    leaves = [Leaf(place, each.path or each.name) for place, each in enumerate(inputs)]
    made = made_good(origin, leaves, lambda place: _seen(inputs[place].name, values, case))
    of_inputs = [made] if made is not None else []
    several = origin.operation is not None and origin.element_count > 1
    if (of_inputs and not several) or case.device != "cpu" or not case.call_fails:
        return of_inputs
    if origin.result == "index" and origin.explanation:
        return of_inputs  # the index is a NaN: kept within its bound, it would be as wrong as before
    call, edited = tried_call(case), []
    launch = origin.fault_launch
    if origin.result != "index" and origin.launch_index is not None:
        launch = origin.launch_index
    try:
        if origin.odd_constant is not None and origin.result != "index":
            edited.append(await with_constant_of_siblings(context, call, origin.odd_constant))
        if origin.operation is not None:
            edited.append(await guard_operation(context, call, origin.operation))
        elif not edited:
            how = "guard" if origin.result == "index" else "finite-mask"
            edited.append(await replace_launch(context, call, launch, how))
    except ProblemError as problem:
        case.notes.append(f"the kernel of launch {launch} was not edited: {problem}")
    return [*(each for each in edited if not each.unavailable), *of_inputs]


def _seen(name: str, values: Values, case: DiagnosisState) -> Tensor | None:
    """An input as any launch read it."""
    for launch in case.launches:
        for argument in launch.tensors:
            found = values.tensor(launch.index, argument, "before") if argument.target == name else None
            if found is not None:
                return found
    return None
