"""A request that memory did not suffice for: which buffer asked, what made its size, and what fills memory.

A request that fails names the launch that asked last. What fills the memory is seen by the capture hook: the
outputs whose memory is still in use, and the packages that nothing has released.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from mcp_server.diagnosis.components import (
    component,
    confirming,
    input_component,
    is_whole,
    launch_component,
    leaf_of,
    reported,
    said,
    seen,
)
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.interventions.input import keep_in_range
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedLoad
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Evidence, Fix
from mcp_server.package.launches import Buffer
from mcp_server.package.symbols import Symbol, names_in, origins
from mcp_server.package.terms.sizes import evaluate
from mcp_server.package.terms.term import itemsize_of
from mcp_server.plurals import counted
from mcp_server.worker.capture.events import OutputsInUse
from mcp_server.worker.protocol import Change

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SMALL = 64 << 20  # bytes that any machine has, for the call that is to pass
SMALLEST = 2  # export takes every dynamic size to be at least that
_LIMITED = {"RLIMIT_AS": "address space", "RLIMIT_DATA": "private memory"}
ROUNDING = 0.01  # CUDA's text has two decimals, and its allocator rounds up

Sizes = Mapping[str, int]  # of the symbols of a package, in this call


def _bytes(buffer: Buffer, sizes: Sizes) -> int | None:
    """The buffer's size in bytes in this call; None if the wrapper does not tell."""
    values = [evaluate(each, sizes) for each in buffer.sizes or ()]
    known = [int(value) for value in values if value is not None]
    whole = len(known) == len(values)
    return prod(known) * itemsize_of(buffer.dtype) if buffer.dtype and whole else None


def _symbols(buffer: Buffer) -> set[str]:
    return {name for each in buffer.sizes or () for name in names_in(each)}


def detect_allocation(case: DiagnosisState) -> Iterator[Suspect]:
    """One suspect for the first buffer whose size in this call is the request that failed."""
    if case.view is None or case.given is None or case.package is None:
        return
    sizes = case.sizes
    for source, root in case.roots:
        asked = asked_for(root)
        if not asked:
            continue
        for buffer in case.view.wrapper.buffers.values():
            size = _bytes(buffer, sizes) if buffer.kind == "allocated" and buffer.sizes else None
            if size is None or abs(size - asked) > ROUNDING * asked:
                continue
            # The first launch that writes its memory, under whatever name.
            names = case.view.sharing[buffer.storage]
            writers = [n for name in names for n in case.view.writers_of_name.get(name, ())]
            if writers:
                yield _of_buffer(buffer, min(writers), reported(root, source), case)
                return


def asked_for(root: ErrorFact) -> float | None:
    """The bytes that were requested; None if the text does not tell."""
    if "out_of_memory" not in root.candidates:
        return None
    if root.fields.get("bytes", "").isdigit():
        return float(root.fields["bytes"])
    number, _, unit = root.fields.get("asked", "").partition(" ")
    return float(number) * UNITS[unit] if unit in UNITS else None


def _of_buffer(buffer: Buffer, writer: int, error: Evidence, case: DiagnosisState) -> Suspect:
    sizes = case.sizes
    party = launch_component(writer, case.launches[writer].kernel, case)
    shape = " x ".join(str(evaluate(each, sizes)) for each in buffer.sizes or ())
    names, labels = _symbols(buffer), {item.name: item.label for item in case.compiled_inputs}
    dims = ", ".join(
        f"dimension {symbol.dim} of {labels[symbol.name]}"
        for symbol in (case.package.signature.symbols if case.package is not None else ())
        if symbol.symbol in names and symbol.name in labels
    )
    size, lines = f"{_bytes(buffer, sizes)} bytes", [*party.model_locations[:3], *case.call_locations[:1]]
    fact = f"{buffer.name}, which launch {writer} ({party.name}) writes, is {shape} of {buffer.dtype} here"
    facts = [error, seen("inspect_package", fact)]
    # What the program itself left for the call, where it, or its shell, limited its memory.
    call = case.captured.failing
    if call is not None and call.headroom is not None:
        limit = call.headroom_of or "RLIMIT_AS"
        what = _LIMITED.get(limit, "memory")
        left = f"the limit on the process's {what} ({limit}) left {call.headroom} bytes"
        facts.append(seen("capture", left))
    return Suspect(
        category="out_of_memory",
        guilty=party.model_copy(update={"value": size, "model_locations": lines}),
        summary=f"There is no memory for {size}: {fact}{f'; it grows with {dims}' if dims else ''}.",
        level=CausalLevel.CALL,
        evidence=tuple(facts),
        fix=Fix(text=f"call it with smaller parts{f' ({dims})' if dims else ''}, or give it more memory"),
        intervention=_with_less(buffer, sizes, case),
    )


def _with_less(buffer: Buffer, sizes: Sizes, case: DiagnosisState) -> Intervention | None:
    """The call with smaller inputs. It can only confirm: what is cut may be needed for another reason."""
    assert case.given is not None
    names, less = _symbols(buffer), dict(sizes)
    while (_bytes(buffer, less) or 0) > SMALL and any(less.get(name, 0) > SMALLEST for name in names):
        less = {name: max(size // 2, SMALLEST) if name in names else size for name, size in less.items()}
    # Dimensions that depend on these sizes are cut, and kept in their ranges.
    changes = []
    for item, tensor in zip(case.compiled_inputs, case.given.tensors, strict=False):
        for dim, got in zip(item.dims, tensor.shape, strict=False):
            value = evaluate(dim.expression, less) if dim.expression and dim.size is None else None
            if value is not None and value != got and value.denominator == 1:
                size = max(int(value), dim.lower or SMALLEST)
                changes.append(Change("resize", input=item.index, dim=dim.index, size=size))
    if not changes:
        return None
    cuts = ", ".join(f"dimension {c.dim} of input {c.input} cut to {c.size}" for c in changes)
    test = Intervention(f"less:{buffer.name}", Kind.INPUT, f"the call with {cuts}", tuple(changes))
    return confirming(test, case)


# The last argument of `aoti_torch_empty_strided` and its like (torch 2.8-2.15).
_MADE = re.compile(r"&(\w+)_handle$")
MODEST = 1024  # that integers of the data are kept to in the call that is to pass


@dataclass(frozen=True)
class _Grown:
    """A buffer that is as large as the request if the size `symbol`, read from `source`, is `value`."""

    buffer: Buffer
    symbol: str
    source: Symbol
    value: int


def detect_data_size(case: DiagnosisState) -> Iterator[Suspect]:
    """A size read from data, if the requested buffer is known or just one value explains the request."""
    for source, error in case.roots:
        asked = error.fields.get("bytes", "")
        if "out_of_memory" not in error.candidates or not asked.isdigit():
            continue
        grown = list(_explaining(int(asked), case))
        shims = [each for log, each in case.errors if log == source and each.family.id == "shim_call"]
        calls = [each.fields["arguments"] for each in shims]
        made = {name for arguments in calls for name in _MADE.findall(arguments)}
        named = [one for one in grown if one.buffer.name in made] or grown
        if len({(one.symbol, one.value) for one in named}) == 1:
            yield _of_data(named[0], error, case)
            return


def _explaining(asked: int, case: DiagnosisState) -> Iterator[_Grown]:
    if case.view is None or case.given is None:
        return
    sizes, symbols = case.sizes, case.view.wrapper.symbols
    for buffer in case.view.wrapper.buffers.values():
        open_ones = [name for name in _symbols(buffer) - sizes.keys() if name in symbols]
        if buffer.kind != "allocated" or len(open_ones) != 1:
            continue
        name = open_ones[0]
        source = (
            next((s for s in origins(name, symbols) if s.tensor), None) if symbols[name].unbacked else None
        )
        # What the size has to be, where the buffer's bytes are a multiple of it.
        once, twice = (_bytes(buffer, {**sizes, name: number}) for number in (1, 2))
        if source is None or once is None or once < 1 or twice != 2 * once or asked % once:
            continue
        yield _Grown(buffer, name, source, asked // once)


def _of_data(grown: _Grown, error: ErrorFact, case: DiagnosisState) -> Suspect:
    assert case.view is not None
    asked, tensor = error.fields["bytes"], grown.source.tensor or ""
    # The launch that computes the value; none where an input is read as it is.
    writer = next(iter(case.view.writers_of_name.get(tensor, ())), None)
    labels = case.view.inputs_behind(writer) if writer is not None else []
    found = [i for i in case.compiled_inputs if i.label in labels or (writer is None and i.name == tensor)]
    item = found[0] if len(found) == 1 else None
    party = component("call", "the call's inputs")
    if writer is not None:
        party = launch_component(writer, case.launches[writer].kernel, case)
    value = f"makes {grown.symbol} {grown.value}"
    lines = [*party.model_locations[:3], *case.call_locations[:1]]
    guilty = party.model_copy(update={"value": value, "model_locations": lines})
    if item is not None:
        guilty = input_component(item, lines, value)
    # The trial can only confirm: larger values may be needed for another reason.
    test = None
    if item is not None and is_whole(item):
        test = confirming(keep_in_range(leaf_of(item), -MODEST, MODEST), case)
    buffer, symbol = grown.buffer.name, grown.symbol
    fact = f"{buffer} needs {asked} bytes where {symbol}, a value of the data, is {grown.value}"
    return Suspect(
        category="out_of_memory",
        guilty=guilty,
        summary=f"There is no memory for {asked} bytes: {fact}."
        f"{f' It is computed from {item.label}.' if item is not None else ''}",
        level=CausalLevel.CALL,
        evidence=(said(error), seen("inspect_package", fact)),
        fix=Fix(text="check the values that become a size before the call, and refuse what is too large"),
        intervention=test,
    )


LEAST_OUTPUTS = 2  # the outputs of one call are in use anywhere
LEAST_LOADS = 2
_Retained = partial(Suspect, category="out_of_memory", level=CausalLevel.BUILD)
_NOT_MAPPED = "executable_stack_or_mount"  # the family of: failed to map segment from shared object


def detect_retained(case: DiagnosisState) -> Iterator[Suspect]:
    """What the program uses, where releasing it would have left enough for the request that failed."""
    hooked = case.captured
    failed_loads = [load for load in hooked.loads if load.outcome == "failed"]
    phase = hooked.failing or next(reversed(failed_loads), None)
    if phase is None or phase.retained is None or not case.own_roots:
        return
    source, error = case.own_roots[0]
    # A library that cannot be mapped lies on a mount without execution, or has no address space left. The
    # first is excluded where the same package was loaded before.
    good = [load.package for load in hooked.loads if load.outcome == "ok"]
    loading = isinstance(phase, CapturedLoad) and phase.package in good
    if "out_of_memory" not in error.candidates and not (error.family.id == _NOT_MAPPED and loading):
        return
    asked = asked_for(error) or 0.0
    fact = reported(error, source)
    outputs = phase.retained.outputs.get("cuda" if "CUDA" in error.text else "cpu")
    if outputs is not None and outputs.calls >= LEAST_OUTPUTS and outputs.bytes >= asked > 0:
        yield _by_outputs(outputs, fact, case)
    numbers = phase.retained.loads
    alive = [load for load in hooked.loads if load.pid == phase.pid and load.number in numbers]
    again = [load for load in alive if load.package == alive[0].package]
    if len(again) >= LEAST_LOADS and sum(load.bytes for load in again) >= asked:
        where = phase.stack or [line for load in again for line in load.stack[:1]]
        name = again[0].package.name
        alive_now = f"{len(again)} loads alive"
        yield _Retained(
            guilty=component("call", f"aoti_load_package({name})", where[:4], value=alive_now),
            summary=f"There is no memory left: {name} is loaded {len(again)} times at once, and each load "
            f"maps its own constants and code ({again[0].bytes} bytes in the package).",
            evidence=(fact, seen("capture", f"{counted(len(again), 'load')} of {name} were never released")),
            fix=Fix(text="load a package once and share its runner, or drop a runner before the next load"),
        )


def _by_outputs(outputs: OutputsInUse, fact: Evidence, case: DiagnosisState) -> Suspect:
    what = f"{outputs.bytes} bytes of outputs of {counted(outputs.calls, 'earlier call')}"
    facts = [seen("capture", f"the memory of {counted(outputs.calls, 'output')} is still in use")]
    lines = case.call_locations
    place = next((f"{line.file}:{line.line}" for line in lines), "the program")
    # The same call with as much more memory as the outputs use, where its memory was limited.
    steps, released = list(case.call.steps) if case.call is not None else [], None
    if steps and "headroom" in steps[-1]:
        steps[-1] = {**steps[-1], "headroom": steps[-1]["headroom"] + outputs.bytes}
        words = "the call with the memory of the earlier outputs released"
        released = Intervention("call:released", Kind.CALL, words, options=Options(steps=tuple(steps)))
    return _Retained(
        guilty=component("script", place, lines, value=what),
        summary=f"There is no memory left: the program still holds {what}.",
        evidence=(fact, *facts),
        fix=Fix(
            text="release outputs that were used: a view keeps the memory of the whole output",
            before="kept.append(y[0])",
            after="kept.append(y[0].clone())",
        ),
        intervention=released,
    )


def detect_lost_constants(case: DiagnosisState) -> Iterator[Suspect]:
    """Constants whose memory cannot be read any more, while the package reads it in place."""
    call = case.captured.failing
    if call is None or not call.lost:
        return
    name, file = next(iter(call.lost.items()))
    others = f" and {counted(len(call.lost) - 1, 'other')}" if len(call.lost) > 1 else ""
    why = f"its file {file} is shorter than what was mapped" if file else "the memory was freed or unmapped"
    fact = f"before the call {counted(len(call.lost), 'constant')} could not be read"
    yield Suspect(
        category="constants",
        guilty=component("constant", name, case.call_locations, value="unreadable memory"),
        summary=f"The memory of constant {name}{others} cannot be read: {why}. The package reads it in place "
        "(user_managed=True), so the call ends in a signal.",
        level=CausalLevel.STATE,
        evidence=(seen("capture", fact),),
        fix=Fix(
            text="leave the file of mapped weights as it is (replace it by a rename), or copy the weights",
            before="user_managed=True",
            after="user_managed=False",
        ),
    )
