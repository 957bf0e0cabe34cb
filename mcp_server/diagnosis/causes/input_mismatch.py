"""The call against what the package was compiled for: devices, dtypes, shapes, order, fixed arguments.

Arguments that were no tensors at export: AOTInductor computes with their values, whatever it is given.

A tensor in such a place, a mask where the export had None say, makes one input too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from mcp_server.diagnosis.causes.eager import refusal
from mcp_server.diagnosis.components import lines_reading
from mcp_server.diagnosis.interventions.base import Change, Effect, Intervention, Kind, trial_in_words
from mcp_server.diagnosis.interventions.input import (
    Leaf,
    cast,
    contiguous,
    exchange,
    move,
    resize,
    together,
    with_strides,
)
from mcp_server.diagnosis.state import DiagnosisState, RunSeen
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCall
from mcp_server.model import Component, Evidence, Fix
from mcp_server.package.mismatch import Mismatch
from mcp_server.package.signature import CompiledInput


def detect_fixed_arguments(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis per argument whose value is not the exported one."""
    if case.exported is None:
        return
    for place, fixed in tensors_at_fixed(case):
        yield _surplus(place, fixed, case)
    for place, fixed in case.exported.fixed:
        given, call = _given(case, place), None
        if given is None or _same(given, fixed):
            given, call = _given_elsewhere(_path(place, case), fixed, case)
        if given is not None:
            yield _fixed_suspect(place, fixed, given, call, case)


def tensors_at_fixed(case: DiagnosisState) -> list[tuple[int, object]]:
    """The places of tensors where the export had none, with what it had, in a call of too many tensors."""
    if all(mismatch.aspect != "count" for mismatch in case.mismatches):
        return []
    fixed = case.exported.fixed if case.exported is not None else ()
    placed = [(place, value) for place, value in fixed if place < len(case.leaves)]
    return [(place, value) for place, value in placed if case.leaves[place].get("kind") == "tensor"]


def _surplus(place: int, fixed: object, case: DiagnosisState) -> Suspect:
    path = _path(place, case)
    leaf = case.leaves[place]
    given = f"a tensor {leaf.get('dtype', '')}{list(leaf.get('shape') or ())}"
    fact = (
        f"argument {place} ({path}) is {given}; it was {fixed!r} at export: the package has no input for it"
    )
    return Suspect(
        category="input_mismatch",
        guilty=_fixed_component(place, given, fixed, case),
        summary=f"Argument {place} ({path}) was {fixed!r} when the model was exported, so that the package "
        "has no input for the tensor that is passed there.",
        level=CausalLevel.CALL,
        evidence=(Evidence(step="read_exported", fact=fact),),
        fix=Fix(
            action=f"export the model with a tensor there (one that changes nothing stands for {fixed!r}), "
            "or one package for each form of the call"
        ),
        harmful=case.failed,
    )


def _fixed_component(
    place: int, given: str, fixed: object, case: DiagnosisState, call: CapturedCall | None = None
) -> Component:
    """The argument with what was passed, beside what it was at export."""
    return Component(
        kind="input",
        name=_path(place, case),
        input_index=place,
        value=f"{given} (exported: {fixed!r})",
        model_locations=call.stack[:2] if call is not None else case.call_locations,
    )


def _path(place: int, case: DiagnosisState) -> str:
    paths = case.given.paths if case.given is not None else ()
    return paths[place] if place < len(paths) else f"argument {place}"


def _given(case: DiagnosisState, place: int) -> str | None:
    """What the caller passed there, as text; None when the call's tree was not kept."""
    if place >= len(case.leaves) or case.leaves[place].get("kind") == "tensor":
        return None
    return str(case.leaves[place].get("value"))


def _given_elsewhere(
    path: str, fixed: object, case: DiagnosisState
) -> tuple[str | None, CapturedCall | None]:
    """Another value in another call of that package, and the call: a check may be of any of them."""
    seen = case.capture
    suspect = seen.suspect if seen is not None else None
    if seen is None or suspect is None:
        return None, None
    alike = [call for call in seen.calls if (call.pid, call.load) == (suspect.pid, suspect.load)]
    other = next((call for call in alike if not _same(call.plain.get(path, repr(fixed)), fixed)), None)
    return (other.plain[path], other) if other is not None else (None, None)


def _same(given: str, fixed: object) -> bool:
    """Whether what was given, as Python writes it, is what the export had: 1 is 1.0."""
    if given == repr(fixed) or not isinstance(fixed, int | float):
        return given == repr(fixed)
    try:
        return float({"True": "1", "False": "0"}.get(given, given)) == fixed
    except ValueError:
        return False


def _fixed_suspect(
    place: int, fixed: object, given: str, call: CapturedCall | None, case: DiagnosisState
) -> Suspect:
    """Of the suspect call, or of `call`."""
    path = _path(place, case)
    where = f" in call {call.number}" if call is not None else ""
    fact = (
        f"argument {place} ({path}) is {given}{where}; it was {fixed!r} at export, which the package "
        "computes with"
    )
    return Suspect(
        category="input_mismatch",
        guilty=_fixed_component(place, given, fixed, case, call),
        summary=f"Argument {place} ({path}) was fixed to {fixed!r} when the model was exported; the {given} "
        "that is passed now is silently ignored.",
        level=CausalLevel.CALL,
        evidence=(Evidence(step="read_exported", fact=fact),),
        fix=Fix(action="pass it as a tensor, or export one package for each value"),
        harmful=case.failed,
    )


def detect_contract(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis per mismatch of the failing call; false alarms are kept as harmless ones."""
    for mismatch in case.mismatches:
        if mismatch.aspect != "count" or not tensors_at_fixed(case):
            yield _contract_suspect(mismatch, case)


def _contract_suspect(mismatch: Mismatch, case: DiagnosisState) -> Suspect:
    checked = _confirmed_by_check(mismatch, case.runs.get("checked"))
    overrun = _overrun(mismatch, case)
    elsewhere = mismatch.aspect == "device_index" and bool(case.call_fails)
    intervention = _intervention(mismatch, case)
    sure = mismatch.severity == "fatal" or overrun is not None or elsewhere
    mended = None if sure else _mended(mismatch, intervention, case)
    refused = refusal(case) if sure else None
    facts = [fact for fact in (checked, refused, overrun, mended) if fact is not None]
    return Suspect(
        category=mismatch.category,
        guilty=_contract_component(mismatch, case),
        summary=_summary(mismatch),
        level=CausalLevel.CALL,
        evidence=(Evidence(step="check_devices", fact=mismatch.sentence), *facts),
        fix=mismatch.fix,
        intervention=intervention,
        parts=_last_part(mismatch, case),
        harmful=case.failed or _does_harm(sure, intervention, case),
        weak=not sure and not mended,
    )


def _does_harm(sure: bool, intervention: Intervention | None, case: DiagnosisState) -> bool:
    """Whether it harms a call that ends well: a program that ended well too was content with its outputs.

    Then only a trial tells, which gave other values without the mismatch.
    """
    trial = case.trials.get(intervention.key) if intervention is not None else None
    if case.ended_well or case.handled:
        return trial is not None and trial.effect is Effect.GONE
    return sure


def _mended(mismatch: Mismatch, intervention: Intervention | None, case: DiagnosisState) -> Evidence | None:
    """A size above a range that may be a false alarm is harmful where the call works within the range.

    That is likely only, since what the call does without may have been at fault.
    """
    trial = case.trials.get(intervention.key) if intervention is not None else None
    if trial is None or trial.effect is not Effect.GONE or not _above(mismatch, case):
        return None
    return Evidence(step="intervention", fact=trial_in_words(trial))


def _overrun(mismatch: Mismatch, case: DiagnosisState) -> Evidence | None:
    """A bad access in this very call: what makes a size out of range more than a false alarm."""
    fault = case.located.fault if case.located is not None else None
    if fault is None or not _above(mismatch, case):
        return None
    return Evidence(step="locate_fault", fact=(fault.summary or fault.text)[:300])


def _above(mismatch: Mismatch, case: DiagnosisState) -> bool:
    """A size above its range can be read past; one below it reads too little, never too much."""
    if mismatch.aspect != "range" or mismatch.input_index is None or mismatch.dim is None:
        return False
    assert case.package is not None
    upper = case.package.inputs[mismatch.input_index].dims[mismatch.dim].upper
    return upper is not None and mismatch.got.isdigit() and int(mismatch.got) > upper


def _summary(mismatch: Mismatch) -> str:
    return f"{mismatch.sentence[:1].upper()}{mismatch.sentence[1:]}."


def _contract_component(mismatch: Mismatch, case: DiagnosisState) -> Component:
    index = mismatch.input_index
    name = "the call's inputs"
    if index is not None and case.package is not None and index < len(case.package.inputs):
        item = case.package.inputs[index]
        name = item.path or item.name
    return Component(
        kind="input" if index is not None else "call",
        name=name,
        input_index=index,
        dim=mismatch.dim,
        value=f"{mismatch.got} (compiled: {mismatch.expected})",
        model_locations=[*case.call_locations, *lines_reading(index, case)],
    )


def _confirmed_by_check(mismatch: Mismatch, run: RunSeen | None) -> Evidence | None:
    """The package's own check saying the same of the same input."""
    if run is None:
        return None
    for error in run.log.errors:
        same_input = error.fields.get("input") in (None, str(mismatch.input_index))
        if same_input and mismatch.category in error.candidates and "input_check" in error.family.tags:
            return Evidence(
                step="run_with_input_checks",
                fact=error.text[:300],
                source=f"checked:{error.line}",
            )
    return None


def _intervention(mismatch: Mismatch, case: DiagnosisState) -> Intervention | None:
    """The call with that input as the package was compiled for it."""
    if mismatch.aspect == "device_index":
        return _gathered(case)
    if mismatch.aspect == "structure":
        return _in_order(mismatch)
    if mismatch.input_index is None or case.package is None:
        return None
    leaf = _leaf(mismatch.input_index, case)
    if mismatch.aspect == "dtype":
        return cast(leaf, mismatch.expected)
    if mismatch.aspect == "device":
        return move(leaf, mismatch.expected)
    if mismatch.aspect == "stride":
        stride = _numbers(mismatch.expected)
        return contiguous(leaf) if stride is None else with_strides(leaf, stride)
    if mismatch.aspect in ("size", "range") and mismatch.dim is not None:
        return _resized(mismatch, leaf, case)
    return None


def _resized(mismatch: Mismatch, leaf: Leaf, case: DiagnosisState) -> Intervention | None:
    """That dimension, and all that have the same symbol, at the nearest size that was compiled for."""
    size = _nearest_size(mismatch, case)
    if size is None or mismatch.dim is None:
        return None
    places = _of_one_symbol(leaf.input, mismatch.dim, case)
    return together(
        f"size:{leaf.input}:{mismatch.dim}:{size}",
        f"{leaf.name} with {size} elements in dimension {mismatch.dim}",
        tuple(resize(_leaf(index, case), dim, size) for index, dim in places),
    )


def _last_part(mismatch: Mismatch, case: DiagnosisState) -> tuple[Intervention, ...]:
    """Of a size above its range also the part at the end: what fails there is not due to the size."""
    index, dim, size = mismatch.input_index, mismatch.dim, _nearest_size_of_range(mismatch, case)
    if index is None or dim is None or size is None or not mismatch.got.isdigit():
        return ()
    rows = tuple(range(int(mismatch.got) - size))
    places = _of_one_symbol(index, dim, case)
    drops = tuple(Change("drop_rows", input=place, dim=at, rows=rows) for place, at in places)
    name = _leaf(index, case).name
    what = f"the last {size} elements of {name} in dimension {dim}"
    return (Intervention(f"tail:{index}:{dim}:{size}", Kind.INPUT, what, drops),)


def _nearest_size_of_range(mismatch: Mismatch, case: DiagnosisState) -> int | None:
    return _nearest_size(mismatch, case) if _above(mismatch, case) else None


def _of_one_symbol(index: int, dim: int, case: DiagnosisState) -> list[tuple[int, int]]:
    """Inputs and dimensions that are as long and may vary: they have to be changed together.

    Also those with a symbol of their own: a kernel goes over one input and reads the other beside it.
    """
    assert case.package is not None and case.given is not None
    tensors = case.given.tensors
    size = tensors[index].shape[dim]
    same = [
        (item.index, each.index)
        for item in case.package.inputs
        for each in item.dims
        if each.size is None
        and item.index < len(tensors)
        and each.index < len(tensors[item.index].shape)
        and tensors[item.index].shape[each.index] == size
    ]
    return same if (index, dim) in same else [(index, dim)]


def _leaf(index: int, case: DiagnosisState) -> Leaf:
    assert case.package is not None
    item = case.package.inputs[index]
    return Leaf(index, item.path or item.name)


def _gathered(case: DiagnosisState) -> Intervention | None:
    """The call with every input on the device of the load: it may not survive one that is elsewhere."""
    elsewhere = [m for m in case.mismatches if m.aspect == "device_index" and m.input_index is not None]
    moves = tuple(move(_leaf(m.input_index or 0, case), m.expected) for m in elsewhere)
    if not moves:
        return None
    return together("device_index", f"every input on {elsewhere[0].expected}", moves)


def _in_order(mismatch: Mismatch) -> Intervention | None:
    """The leaves in the exported order, where only the order differs."""
    want, got = mismatch.expected.split(", "), mismatch.got.split(", ")
    if sorted(want) != sorted(got):
        return None
    return exchange(tuple(got.index(path) for path in want), tuple(want))


def _numbers(text: str) -> tuple[int, ...] | None:
    parts = [part.strip() for part in text.strip("()[]").split(",") if part.strip()]
    return tuple(int(part) for part in parts) if all(part.lstrip("-").isdigit() for part in parts) else None


def _nearest_size(mismatch: Mismatch, case: DiagnosisState) -> int | None:
    """The compiled size, or the nearest end of the compiled range."""
    assert case.package is not None and mismatch.input_index is not None and mismatch.dim is not None
    dim = case.package.inputs[mismatch.input_index].dims[mismatch.dim]
    got = int(mismatch.got) if mismatch.got.lstrip("-").isdigit() else None
    if dim.size is not None:
        return dim.size
    if got is not None and dim.lower is not None and got < dim.lower:
        return dim.lower
    return dim.upper


MOST_PAIRS = 3


def detect_argument_order(case: DiagnosisState) -> Iterator[Suspect]:
    """A pair that gives the expected result when exchanged; until that is tried, a mere possibility."""
    if not _open(case):
        return
    for first, second in list(_alike(case))[:MOST_PAIRS]:
        test = _exchanged(first, second, len(case.leaves))
        trial = case.trials.get(test.key)
        if trial is None or trial.proves:
            yield _order_suspect(first, second, test, case, tried=trial is not None)


def _open(case: DiagnosisState) -> bool:
    """Whether the package computes what was exported, of inputs that fit, and the program expected more."""
    plain = case.runs.get("plain")
    expected = plain is not None and (plain.departs or not all(plain.held.values()))
    return expected and bool(case.equals_eager) and not case.mismatches


def _alike(case: DiagnosisState) -> Iterator[tuple[CompiledInput, CompiledInput]]:
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


def _order_suspect(
    first: CompiledInput, second: CompiledInput, test: Intervention, case: DiagnosisState, *, tried: bool
) -> Suspect:
    names = f"{first.label} and {second.label}"
    return Suspect(
        category="input_mismatch",
        guilty=Component(
            kind="call",
            name=f"the order of {names}",
            input_index=first.index,
            model_locations=[*case.call_locations, *lines_reading(first.index, case)],
        ),
        summary=f"{names[:1].upper()}{names[1:]} are swapped. They have the same dtype, shape and "
        "strides, so no input check can detect it.",
        level=CausalLevel.CALL,
        evidence=(Evidence(step="check_devices", fact=f"{names} have the same dtype, shape and stride"),),
        fix=Fix(
            action=f"swap {first.path or first.name} and {second.path or second.name}: a package takes "
            "inputs in the order of the export, keywords in the order in which that was given them"
        ),
        intervention=test,
        weak=not tried,
        settle="A call with the two swapped would settle it.",
    )
