"""The call against what the package was compiled for: devices, dtypes, shapes, strides, order."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.detectors.eager import refusal
from mcp_server.diagnosis.detectors.fixed_arguments import tensors_at_fixed
from mcp_server.diagnosis.interventions.base import Change, Effect, Intervention, Kind
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
from mcp_server.diagnosis.parties import lines_reading
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Party
from mcp_server.package.mismatch import Mismatch

# Families of AOTI_RUNTIME_CHECK_INPUTS (generated check_input_N and assert_size_stride, torch 2.8-2.15).
CHECK_FAMILIES = frozenset(
    {
        "input_dtype",
        "input_static_dim",
        "input_range",
        "input_stride",
        "input_device",
        "input_count",
        "size_stride_assert",
    }
)


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis per mismatch of the failing call; false alarms are kept as harmless ones."""
    for mismatch in case.mismatches:
        if mismatch.aspect != "count" or not tensors_at_fixed(case):
            yield _suspect(mismatch, case)


def _suspect(mismatch: Mismatch, case: Case) -> Suspect:
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
        guilty=_party(mismatch, case),
        summary=_summary(mismatch),
        level=CausalLevel.CALL,
        evidence=(Evidence(step="check_devices", fact=mismatch.sentence), *facts),
        fix=mismatch.fix,
        intervention=intervention,
        parts=_last_part(mismatch, case),
        harmful=(sure and not case.handled) or case.failed,
        weak=not sure and not mended,
    )


def _mended(mismatch: Mismatch, intervention: Intervention | None, case: Case) -> Evidence | None:
    """A size above a range that may be a false alarm is harmful where the call works within the range.

    That is likely only, since what the call does without may have been at fault.
    """
    trial = case.trials.get(intervention.key) if intervention is not None else None
    if trial is None or trial.effect is not Effect.GONE or not _above(mismatch, case):
        return None
    return Evidence(step="intervention", fact=f"{trial.intervention.what}: {trial.after.describe()}")


def _overrun(mismatch: Mismatch, case: Case) -> Evidence | None:
    """A bad access in this very call: what makes a size out of range more than a false alarm."""
    fault = case.located.fault if case.located is not None else None
    if fault is None or not _above(mismatch, case):
        return None
    return Evidence(step="locate_fault", fact=(fault.summary or fault.text)[:300])


def _above(mismatch: Mismatch, case: Case) -> bool:
    """A size above its range can be read past; one below it reads too little, never too much."""
    if mismatch.aspect != "range" or mismatch.input_index is None or mismatch.dim is None:
        return False
    assert case.package is not None
    upper = case.package.inputs[mismatch.input_index].dims[mismatch.dim].upper
    return upper is not None and mismatch.got.isdigit() and int(mismatch.got) > upper


def _summary(mismatch: Mismatch) -> str:
    return f"{mismatch.sentence[:1].upper()}{mismatch.sentence[1:]}."


def _party(mismatch: Mismatch, case: Case) -> Party:
    index = mismatch.input_index
    name = "the call's inputs"
    if index is not None and case.package is not None and index < len(case.package.inputs):
        item = case.package.inputs[index]
        name = item.path or item.name
    return Party(
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
        if same_input and mismatch.category in error.candidates and error.family.id in CHECK_FAMILIES:
            return Evidence(
                step="run_with_input_checks",
                fact=error.text[:300],
                source=f"checked:{error.line}",
            )
    return None


def _intervention(mismatch: Mismatch, case: Case) -> Intervention | None:
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


def _resized(mismatch: Mismatch, leaf: Leaf, case: Case) -> Intervention | None:
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


def _last_part(mismatch: Mismatch, case: Case) -> tuple[Intervention, ...]:
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


def _nearest_size_of_range(mismatch: Mismatch, case: Case) -> int | None:
    return _nearest_size(mismatch, case) if _above(mismatch, case) else None


def _of_one_symbol(index: int, dim: int, case: Case) -> list[tuple[int, int]]:
    """Inputs and dimensions that are this symbol: they have to be changed together."""
    assert case.package is not None
    symbol = case.package.inputs[index].dims[dim].expression
    same = [
        (item.index, each.index)
        for item in case.package.inputs
        for each in item.dims
        if symbol and each.size is None and each.expression == symbol
    ]
    return same or [(index, dim)]


def _leaf(index: int, case: Case) -> Leaf:
    assert case.package is not None
    item = case.package.inputs[index]
    return Leaf(index, item.path or item.name)


def _gathered(case: Case) -> Intervention | None:
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


def _nearest_size(mismatch: Mismatch, case: Case) -> int | None:
    """The compiled size, or the nearest end of the compiled range."""
    assert case.package is not None and mismatch.input_index is not None and mismatch.dim is not None
    dim = case.package.inputs[mismatch.input_index].dims[mismatch.dim]
    got = int(mismatch.got) if mismatch.got.lstrip("-").isdigit() else None
    if dim.size is not None:
        return dim.size
    if got is not None and dim.lower is not None and got < dim.lower:
        return dim.lower
    return dim.upper
