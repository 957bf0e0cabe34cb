"""Walks from a failed index check or a bad value back to its origin, and finds changes to try there."""

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from mcp_server.diagnosis.indices import (
    candidates,
    checked_inputs,
    operator_indices,
    parts_of,
    watched_indices,
)
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import Leaf, changed, replace_element, replace_where, together
from mcp_server.diagnosis.interventions.kernel import (
    EXPONENT,
    correct_expression,
    guard_operation,
    replace_launch,
    shift_exponents,
)
from mcp_server.diagnosis.observe import DECIDES, GUESSES, Observation
from mcp_server.diagnosis.observe.intervene import tried_call
from mcp_server.diagnosis.observe.static import parts_to_see
from mcp_server.diagnosis.origin import Condition, OffendingElement, Origin
from mcp_server.diagnosis.origin.find import Fault, behind, find_origin
from mcp_server.diagnosis.origin.values import ProbedValues, Tensor
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.verdict import is_bystander, is_cause, untried
from mcp_server.errors import ProblemError
from mcp_server.package.view import PackageView
from mcp_server.runtime.context import Context
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.kernel_io import LaunchValues, find_first_bad
from mcp_server.worker.protocol import Change, Where
from mcp_server.worker.report import OddElement

MOST_FAULTS = 4
MOST_LAUNCHES = 64  # launches whose values are kept
MOST_OF_CALL = 512  # the same for a walk from an output through the whole call
ARGUMENTS = 64  # kept arguments of one launch
SCANNED = 1 << 16  # most elements of an index that are examined


class FindOrigin(Observation, seconds=3, best=DECIDES, alone=True):
    """Keep the values of the launches behind the fault in one run, and walk back to where it was computed."""

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if case.call is None or case.view is None or "plain" not in case.runs:
            return 0.0
        if case.given is not None and parts_to_see(case) and "look_at_indices" not in case.done:
            return 0.0
        if not faults(case) or case.harmless is not None:
            return 0.0  # nothing to walk back from, or FindOutputOrigin has done it
        # First try suspects nearer to the root cause: they explain the bad value.
        deeper = any(each.level >= CausalLevel.STATE and untried(each, case) for each in open_suspects)
        return GUESSES if deeper else self.best

    async def act(self, case: DiagnosisState, context: Context) -> None:
        view = case.view
        assert view is not None
        sought = faults(case)
        launches = sorted({number for fault in sought for number in behind(view, fault)})[-MOST_LAUNCHES:]
        seen = await _kept(launches, case, context)
        values, reached = ProbedValues(seen), {each.launch for each in seen if each.launch is not None}
        begun = reached.intersection(each.launch for each in sought)
        if case.device == "cpu" and begun:
            # Many layers may use one kernel: the call ended in its last launch that began.
            sought = [each for each in sought if each.launch == max(begun)]
        for fault in sought[:MOST_FAULTS]:
            placed = _placed(fault, view, values)
            case.origin = find_origin(view, placed, values) if placed is not None else None
            if case.origin is not None:
                await _find_changes(case.origin, values, case, context)
                return


class FindOutputOrigin(FindOrigin, seconds=6):
    """If the first bad value proved harmless, walk back from the last one that the call writes."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        first = case.first_bad
        if case.view is None or first is None or first.what != "non_finite" or not case.outputs_nonfinite:
            return 0.0
        of_values = [each for each in case.suspects if each.category == "nan_or_inf"]
        harmless = any(is_bystander(each, case) for each in of_values)
        return self.best if harmless and not any(is_cause(each, case) for each in case.suspects) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        view, before = case.view, case.kernel_io
        assert view is not None and before is not None
        launches = [each.index for each in view.wrapper.launches][-MOST_OF_CALL:]
        seen = await _kept(launches, case, context)
        fault, values = _last_bad(seen), ProbedValues(seen)
        origin = find_origin(view, fault, values) if fault is not None else None
        if origin is None or origin.launch_index is None:
            return
        launch = next(each for each in seen if each.launch == origin.launch_index)
        made = launch.model_copy(update={"arguments": [a for a in launch.arguments if a.when == "after"]})
        first = find_first_bad([made], view)
        if first is None:
            return
        element = OddElement(value=origin.bad_value or first.element.value)
        first = first.model_copy(update={"element": element})
        case.harmless, case.origin = before.first_bad, origin
        case.kernel_io = before.model_copy(update={"first_bad": first})
        await _find_changes(origin, values, case, context)


def _last_bad(launches: Sequence[LaunchValues]) -> Fault | None:
    """The last non-finite value of a call, preferring NaN. None if its element is unknown.

    Values that may be intended are skipped, such as minus infinity in a mask.
    """
    written = (
        (argument.non_finite.value == "nan", launch.sequence, launch.launch, argument)
        for launch in launches
        for argument in launch.arguments
        if argument.when == "after" and argument.non_finite is not None and argument.non_finite.index
        if not argument.perhaps_intended
    )
    last = max(written, key=lambda each: each[:2], default=None)
    if last is None or last[2] is None or last[3].non_finite is None:
        return None
    element = tuple(last[3].non_finite.index)
    return Fault(last[2], "value", buffer=last[3].name, element=element, when="after")


def faults(case: DiagnosisState) -> list[Fault]:
    """The faults from which to walk back. Empty if an input is known to have the bad value."""
    refused = operator_indices(case)
    direct = parts_of([*checked_inputs(case), *refused])
    if any(part in case.index_values and case.index_values[part].outside for part in direct):
        return []
    first = case.first_bad
    if first is not None and first.kind == "kernel" and first.what == "non_finite":
        fault = Fault.of_first_bad(first)
        return [fault] if fault is not None and case.nan_questioned else []
    found = [Fault.of_candidate(each) for each in candidates(case)]
    found = found or _missed(case)
    found = found or [
        Fault(each.launch.index, "value", buffer=each.variable, low=each.low, high=each.high + 1)
        for each in [each for each in refused if each.maker is not None] or watched_indices(case)
    ]
    return list(dict.fromkeys(found))[:MOST_LAUNCHES]


def _missed(case: DiagnosisState) -> list[Fault]:
    """The access with a loaded index that a memory checker saw outside its tensor."""
    seen = case.located.fault if case.located is not None else None
    if seen is None or seen.launch is None or seen.missed is None:
        return []
    if seen.blame is not None and seen.blame.kind == "kernel":
        return []  # the kernel is at fault for any input
    missed = seen.missed
    if missed.shape is None or not missed.stride or not any(part.kind == "index" for part in seen.parts):
        return []
    shape, stride = tuple(missed.shape), tuple(missed.stride)
    return [Fault(seen.launch.index, "access", parameter=missed.parameter, shape=shape, stride=stride)]


async def _kept(launches: Sequence[int], case: DiagnosisState, context: Context) -> Sequence[LaunchValues]:
    """Make the call once and keep these launches' values. Empty if probes cannot be added."""
    try:
        shown = len(launches) * ARGUMENTS
        seen = await dump_kernel_io(context, case.package_call, launches=launches, save=True, shown=shown)
    except ProblemError as problem:
        case.notes.append(f"the origin of the bad value was not looked for: {problem}")
        return ()
    return seen.launches


def _placed(fault: Fault, view: PackageView, values: ProbedValues) -> Fault | None:
    """The fault with its first bad element, or None."""
    if fault.kind != "value" or fault.element or fault.high is None:
        return fault
    launch = view.wrapper.launches[fault.launch]
    argument = next((each for each in launch.tensors if each.target == fault.buffer), None)
    tensor = values.tensor(fault.launch, argument, fault.when) if argument is not None else None
    if tensor is None or fault.low is None:
        return None
    for place in range(min(tensor.count, SCANNED)):
        value = tensor.at(place)
        if value is not None and not fault.low <= value < fault.high:
            return replace(fault, element=tensor.unraveled(place))
    return None


async def _find_changes(origin: Origin, values: ProbedValues, case: DiagnosisState, context: Context) -> None:
    """Find changes that remove the bad value, and correct the expression if it is at fault."""
    inputs = case.compiled_inputs
    leaves = [Leaf(place, each.path or each.name) for place, each in enumerate(inputs)]

    held = dict(case.named_leaves)

    def seen(place: int) -> Tensor | None:
        """An input as any launch read it, in the shape that the call gave it."""
        read = ((launch.index, a) for launch in case.launches for a in launch.tensors)
        own = (pair for pair in read if pair[1].target == inputs[place].name)
        found = (values.tensor(number, argument, "before") for number, argument in own)
        facts = held.get(inputs[place].path or inputs[place].name)
        shape = tuple(facts.shape) if facts is not None and facts.shape is not None else None
        given = (each if shape is None else each.reshaped(shape) for each in found if each is not None)
        return next((tensor for tensor in given if tensor is not None), None)

    one = as_given(origin, leaves) or kept_in_range(origin, leaves)
    found = [one] if one is not None else made_good(origin, leaves, seen)
    case.origin_changes = [*found, *as_usual(origin, leaves, seen)]
    # A NaN index would still be wrong after it was kept within its bound.
    of_nan = origin.result == "index" and bool(origin.explanation)
    if not case.call_fails or of_nan:
        return
    # A correction in the crashing kernel itself would only guard the crash site.
    elsewhere = origin.launch_index != origin.fault_launch
    if origin.correction is not None and (found or elsewhere):
        case.origin_fix = await _made_if_possible(correct_expression(context, tried_call(case), origin), case)
        return
    # With several elements, first guard the operation that left its domain: no element is at fault alone.
    if not found or (origin.operation is not None and origin.element_count > 1):
        edited = await _made_if_possible(_edit(origin, case, context), case)
        edits = [edited] if edited is not None else []
        changes = [*edits, *case.origin_changes]
        case.origin_changes = sorted(changes, key=lambda each: each.hides)  # sorted last: these prove nothing


def _edit(origin: Origin, case: DiagnosisState, context: Context) -> Awaitable[Intervention]:
    """Edit a kernel at the origin, which takes seconds."""
    call, of_value = tried_call(case), origin.result != "index"
    if origin.operation is not None:
        return guard_operation(context, call, origin.operation)
    if of_value and EXPONENT.search(origin.explanation):
        return shift_exponents(context, call, origin)
    launch = origin.launch_index if of_value and origin.launch_index is not None else origin.fault_launch
    return replace_launch(context, call, launch, "finite-mask" if of_value else "guard")


async def _made_if_possible(making: Awaitable[Intervention], case: DiagnosisState) -> Intervention | None:
    """The edit, or None if its kernel cannot be changed in this way."""
    try:
        edited = await making
    except ProblemError as problem:
        case.notes.append(f"a kernel at the origin was not edited: {problem}")
        return None
    return None if edited.unavailable else edited


MOST_CHANGED = 64  # elements, or rows of a mask, that are changed one by one
MOST_USUAL = 3  # elements replaced by a usual value, each in a separate trial
LEAST_VARIED = 2  # a line of so few elements is too short for a deviation
MOST_COUNTED = 1 << 16  # most elements of a tensor that are examined
_BOOLEAN = {"True": True, "False": False}

TensorOf = Callable[[int], Tensor | None]


def as_given(origin: Origin, leaves: Sequence[Leaf]) -> Intervention | None:
    """Set all non-finite values of the input to 0, if the caller passed the bad value."""
    places = [each.input_index for each in origin.elements if each.value in ("nan", "inf", "-inf")]
    place = places[0] if places and origin.launch_index is None else None
    if place is None or place >= len(leaves):
        return None
    action = f"keep NaN and infinities out of {leaves[place].name} where it is produced"
    return replace(replace_where(leaves[place], Where(non_finite=True), 0.0), action=action)


def kept_in_range(origin: Origin, leaves: Sequence[Leaf]) -> Intervention | None:
    """Clamp the rows of an input whose sums leave the range of their type, so that no sum does."""
    found = origin.overflow
    if found is None or found.bound is None or found.input_index >= len(leaves):
        return None
    leaf, bound, rows = leaves[found.input_index], found.bound, tuple(found.rows)
    change = Change("elements", leaf.input, low=-bound, high=bound, dim=0, rows=rows)
    row = rows[0] if len(rows) == 1 else list(rows)
    kept = f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(map(str, rows[:8]))}"
    return replace(
        changed(leaf, change),
        what=f"the call with {kept} of {leaf.name} kept within ±{bound:g}, the others as they are",
        after_code=f"{leaf.name}[{row}] = {leaf.name}[{row}].clamp(-{bound:g}, {bound:g})",
        action=f"keep {kept} of {leaf.name} within ±{bound:g}: scale larger values down before the call",
        smallest=True,
    )


def made_good(origin: Origin, leaves: Sequence[Leaf], tensor_of: TensorOf) -> list[Intervention]:
    """Set the offending elements to the nearest good value, or open one element of a fully masked row.

    Then do so for all bad elements of the input, since others may make other outputs fail. `leaves` are the
    inputs by place, `tensor_of` gives the values of one. Empty if no offending input element is known, or no
    good value for it.
    """
    condition = origin.condition
    elements = [each for each in origin.elements if each.kind == "input" and each.input_index is not None]
    if condition is None:
        masked = [e for e in elements if e.value in _BOOLEAN]
        blamed = [e for e in masked if e.label == masked[0].label]
        if len({e.value for e in blamed}) > 1:  # so the row is not fully masked
            return []
    else:
        blamed = [e for e in elements if e.label == condition.label and _is_bad(e.value, condition)]
    place = blamed[0].input_index if blamed else None
    if place is None or place >= len(leaves):
        return []
    leaf, tensor = leaves[place], tensor_of(place)
    if condition is None:
        opened = _unmasked(leaf, blamed, tensor)
        return [opened] if opened is not None else []
    good, alike = condition.good, -1
    if tensor is not None and tensor.count <= MOST_COUNTED:
        alike = sum(_is_bad(str(tensor.at(place)), condition) for place in range(tensor.count))
    if condition.usual is not None and blamed[0].index:
        return [_joined(leaf, (replace_element(leaf, tuple(blamed[0].index), condition.usual),), "")]
    every, several = _all_good(leaf, condition), origin.element_count > len(origin.elements)
    if every is not None and (several or (alike == len(blamed) and condition.low != condition.high)):
        return [every]
    parts = tuple(replace_element(leaf, tuple(e.index), good) for e in blamed if e.index)
    few = len(parts) > 0 and len(blamed) <= MOST_CHANGED
    found = [_joined(leaf, parts, f"replaced by {good}") if few else None, every]
    return [each for each in found if each is not None]


def _all_good(leaf: Leaf, condition: Condition) -> Intervention | None:
    """Set all bad elements of an input to the nearest good value. None if they are between two limits."""
    good, above, below = condition.good, condition.low is not None, condition.high is not None
    if above and condition.low == condition.high:
        return replace(replace_where(leaf, Where(equals=condition.low), good), smallest=True)
    if above == below:
        return None
    change = Change("elements", leaf.input, low=good, where=Where(below=good))
    if above:
        change = Change("elements", leaf.input, high=good, where=Where(above=good))
    part = f"the elements of {leaf.name} {'above' if above else 'below'} {good} replaced by {good}"
    if isinstance(good, float) and good:  # the float next to a bad one is not a readable number
        valid = f"below {condition.low:g}" if above else f"above {condition.high:g}"
        part = f"the elements of {leaf.name} that are not {valid} replaced by the nearest number {valid}"
    return replace(changed(leaf, change), what=f"the call with {part}", smallest=True)


def as_usual(origin: Origin, leaves: Sequence[Leaf], tensor_of: TensorOf) -> list[Intervention]:
    """Changes that set one offending element to the median of its input, the furthest element first.

    Then come changes of lines of equal elements, whose deviation is 0, and one change of all elements. The
    nearest good value could make another part of the model fail, as 1e-38 does in a reciprocal.
    """
    found: dict[str, tuple[float, Intervention]] = {}
    every: dict[int, list[Intervention]] = {}
    for number, each in enumerate(origin.elements):
        place = each.input_index
        if each.kind == "constant" or place is None or place >= len(leaves) or not each.index:
            continue
        tensor, value = tensor_of(place), _number(each.value)
        if tensor is None or value is None or not 2 < tensor.count <= MOST_COUNTED:
            continue
        known = (tensor.at(i) for i in range(tensor.count))
        numbers = (x for x in known if isinstance(x, int | float) and not isinstance(x, bool))
        others = sorted(x for x in numbers if math.isfinite(x) and x != value)
        if not others:
            continue
        usual = others[len(others) // 2]
        spread = others[-1 - len(others) // 10] - others[len(others) // 10] or 1
        made = replace_element(leaves[place], tuple(each.index), usual)
        every.setdefault(place, []).append(made)
        if number >= MOST_USUAL:
            continue
        found[made.key] = abs(value - usual) / spread, made
        varied = _varied(leaves[place], tuple(each.index), tensor, usual)
        if varied is not None:
            found[varied.key] = -1.0, varied
    ordered = [made for _, made in sorted(found.values(), key=lambda pair: -pair[0])]
    joint = [_joined(leaves[n], tuple(made), "set to other values") for n, made in every.items() if made[1:]]
    apart = any(each.kind == "selector" for each in origin.elements)  # one change leaves the others bad
    return joint if joint and apart else [*ordered, *joint]


def _varied(leaf: Leaf, at: tuple[int, ...], tensor: Tensor, usual: float) -> Intervention | None:
    """Set one element of each line of equal elements. None if no line through `at` has equal elements."""

    def constant(index: tuple[int, ...], axis: int) -> bool:
        return len({tensor.value(each) for each in _line(tensor, index, axis)}) == 1

    axes = [axis for axis, size in enumerate(tensor.shape) if size > LEAST_VARIED and constant(at, axis)]
    if not axes:
        return None
    rows = [each for each in tensor.indices() if each[axes[-1]] == 0 and constant(each, axes[-1])]
    parts = tuple(replace_element(leaf, row, usual) for row in rows)
    return _joined(leaf, parts, f"set to {usual}") if 1 < len(parts) <= MOST_CHANGED else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_bad(text: str, condition: Condition) -> bool:
    """Whether a displayed value makes the expression go wrong."""
    value = int(text) if text.lstrip("-").isdigit() else _number(text)
    return value is not None and not (
        (condition.low is not None and value < condition.low)
        or (condition.high is not None and value > condition.high)
    )


def _unmasked(leaf: Leaf, elements: Sequence[OffendingElement], tensor: Tensor | None) -> Intervention | None:
    """Open one element of each row of a mask that masks the whole row."""
    bad = _BOOLEAN[elements[0].value]
    first = tuple(elements[0].index)
    if not first:
        return None
    axis, rows, known = len(first) - 1, [first], {tuple(each.index) for each in elements}
    if tensor is not None:
        # Find the dimension along which all elements are offending.
        closeness = {}
        for each in range(len(first)):
            line = list(_line(tensor, first, each))
            all_bad = len(line) > 1 and all(tensor.value(index) == bad for index in line)
            closeness[each] = all_bad, len(known.intersection(line)), each
        axis = max(closeness, key=closeness.__getitem__)
        rows = [
            index
            for index in tensor.indices()
            if index[axis] == 0 and all(tensor.value(each) == bad for each in _line(tensor, index, axis))
        ]
    if not 0 < len(rows) <= MOST_CHANGED:
        return None
    # The worker needs numbers; the code that users read has bools.
    parts = tuple(
        replace(
            replace_element(leaf, row, int(not bad)),
            what=f"the call with {leaf.name}[{', '.join(map(str, row))}] set to {not bad}",
            after_code=f"{leaf.name}[{', '.join(map(str, row))}] = {not bad}",
        )
        for row in rows
    )
    joined = _joined(leaf, parts, f"set to {not bad}")
    if axis != len(first) - 1 or tensor is None:
        return joined
    closed = f"{leaf.name}.all(-1)" if bad else f"~{leaf.name}.any(-1)"
    return replace(joined, after_code=f"{leaf.name}[{closed}, 0] = {not bad}")  # opens every fully masked row


def _line(tensor: Tensor, through: tuple[int, ...], axis: int) -> Iterator[tuple[int, ...]]:
    """Yield the indices of the line along `axis` through an element."""
    for place in range(tensor.shape[axis]):
        yield (*through[:axis], place, *through[axis + 1 :])


def _joined(leaf: Leaf, parts: tuple[Intervention, ...], what: str) -> Intervention:
    """Combine changes of several elements of an input."""
    if len(parts) == 1:
        return replace(parts[0], smallest=True)
    key = "+".join(part.key for part in parts)
    text = f"the call with {len(parts)} elements of {leaf.name} {what}"
    return replace(together(key, text, parts), before_code=leaf.name, smallest=True)
