"""A request that memory did not suffice for: which buffer asked for it, and which value made its size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from mcp_server.diagnosis.components import launch_component, said
from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind
from mcp_server.diagnosis.interventions.input import Leaf, keep_in_range
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.facts import ErrorFact, LogFacts
from mcp_server.logs.journal import ITEM_SIZES
from mcp_server.model import Component, Evidence, Fix
from mcp_server.package.launches import Buffer
from mcp_server.package.mismatch import symbol_values
from mcp_server.package.signature import CompiledInput
from mcp_server.package.statements import evaluate, names_in
from mcp_server.package.symbols import Symbol, origins

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SMALL = 64 << 20  # bytes that any machine has, for the call that is to pass
SMALLEST = 2  # export takes every dynamic size to be at least that
_LIMITED = {"RLIMIT_AS": "address space", "RLIMIT_DATA": "private memory"}
ROUNDING = 0.01  # CUDA's text has two decimals, and its allocator rounds up


def detect_allocation(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for the first buffer whose size in this call is the request that failed."""
    if case.view is None or case.given is None or case.package is None:
        return
    sizes = symbol_values(case.package.signature, case.given.tensors)
    for source, facts in case.logs:
        asked = _asked(facts.root) if facts.root is not None else None
        found = _buffer(asked, sizes, case) if asked else None
        if found is not None and facts.root is not None:
            yield _allocation_suspect(found, sizes, facts.root, source, case)
            return


def _asked(root: ErrorFact) -> float | None:
    """Bytes of the request, where the text tells them."""
    if "out_of_memory" not in root.candidates:
        return None
    if root.fields.get("bytes", "").isdigit():
        return float(root.fields["bytes"])
    number, _, unit = root.fields.get("asked", "").partition(" ")
    return float(number) * UNITS[unit] if unit in UNITS else None


def _buffer(asked: float, sizes: dict[str, int], case: DiagnosisState) -> Buffer | None:
    assert case.view is not None
    for buffer in case.view.wrapper.buffers.values():
        size = _allocation_bytes(buffer, sizes) if buffer.kind == "allocated" else None
        if (
            size is not None
            and abs(size - asked) <= ROUNDING * asked
            and _allocation_writer(buffer, case) is not None
        ):
            return buffer
    return None


def _allocation_writer(buffer: Buffer, case: DiagnosisState) -> int | None:
    """The first launch that writes its memory, under whatever name."""
    assert case.view is not None
    names = case.view.sharing[buffer.storage]
    return min((n for name in names for n in case.view.writers_of_name.get(name, ())), default=None)


def _allocation_bytes(buffer: Buffer, sizes: dict[str, int]) -> int | None:
    """Its size in this call; None where the wrapper does not say."""
    values = [evaluate(each, sizes) for each in buffer.sizes or ()]
    known = [int(value) for value in values if value is not None]
    item = ITEM_SIZES.get(buffer.dtype or "")
    return prod(known) * item if item and known and len(known) == len(values) else None


def _allocation_suspect(
    buffer: Buffer, sizes: dict[str, int], root: ErrorFact, source: str, case: DiagnosisState
) -> Suspect:
    assert case.view is not None
    number = _allocation_writer(buffer, case)
    assert number is not None
    party = launch_component(number, case.view.wrapper.launches[number].kernel, case)
    shape = " x ".join(str(evaluate(each, sizes)) for each in buffer.sizes or ())
    dims = ", ".join(_dims(buffer, case))
    grows = f"; it grows with {dims}" if dims else ""
    fact = f"{buffer.name}, which launch {number} ({party.name}) writes, is {shape} of {buffer.dtype} here"
    return Suspect(
        category="out_of_memory",
        guilty=party.model_copy(
            update={
                "value": f"{_allocation_bytes(buffer, sizes)} bytes",
                "model_locations": [*party.model_locations[:3], *case.call_locations[:1]],
            }
        ),
        summary=f"There is no memory for {_allocation_bytes(buffer, sizes)} bytes: {fact}{grows}.",
        level=CausalLevel.CALL,
        evidence=(
            Evidence(step="run", fact=root.text[:300], source=f"{source}:{root.line}"),
            Evidence(step="inspect_package", fact=fact),
            *_limit(case),
        ),
        fix=Fix(action=f"call it with smaller parts{f' ({dims})' if dims else ''}, or give it more memory"),
        intervention=_with_less(buffer, sizes, case),
    )


def _limit(case: DiagnosisState) -> Iterator[Evidence]:
    """What the program itself left for the call, where it, or its shell, limited its address space."""
    call = case.capture.failing if case.capture is not None else None
    if call is not None and call.headroom is not None:
        name = call.headroom_of or "RLIMIT_AS"
        fact = (
            f"the limit on the process's {_LIMITED.get(name, 'memory')} ({name}) left {call.headroom} bytes"
        )
        yield Evidence(step="capture", fact=fact)


def _with_less(buffer: Buffer, sizes: dict[str, int], case: DiagnosisState) -> Intervention | None:
    """The call with smaller inputs. It can only confirm: what is cut may be needed for another reason."""
    changes = tuple(_cut(_less(buffer, sizes), case))
    cuts = ", ".join(f"dimension {c.dim} of input {c.input} cut to {c.size}" for c in changes)
    test = Intervention(f"less:{buffer.name}", Kind.INPUT, f"the call with {cuts}", changes)
    trial = case.trials.get(test.key)
    return test if changes and (trial is None or trial.proves) else None


def _less(buffer: Buffer, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes, with those that the buffer's follow from halved until it is small."""
    names, less = _symbols(buffer), dict(sizes)
    while (_allocation_bytes(buffer, less) or 0) > SMALL and any(
        less.get(name, 0) > SMALLEST for name in names
    ):
        less = {name: max(size // 2, SMALLEST) if name in names else size for name, size in less.items()}
    return less


def _cut(sizes: dict[str, int], case: DiagnosisState) -> Iterator[Change]:
    """The changes of inputs that make their dimensions fit these sizes, and keep them in their ranges."""
    assert case.package is not None and case.given is not None
    for item, tensor in zip(case.package.inputs, case.given.tensors, strict=False):
        for dim, got in zip(item.dims, tensor.shape, strict=False):
            value = evaluate(dim.expression, sizes) if dim.expression and dim.size is None else None
            if value is not None and value != got and value.denominator == 1:
                size = max(int(value), dim.lower or SMALLEST)
                yield Change("resize", input=item.index, dim=dim.index, size=size)


def _symbols(buffer: Buffer) -> set[str]:
    return {name for each in buffer.sizes or () for name in names_in(each)}


def _dims(buffer: Buffer, case: DiagnosisState) -> Iterator[str]:
    """The dimensions of inputs that the buffer's size is computed from."""
    assert case.package is not None
    names = _symbols(buffer)
    labels = {item.name: item.label for item in case.package.inputs}
    for symbol in case.package.signature.symbols:
        if symbol.symbol in names and symbol.name in labels:
            yield f"dimension {symbol.dim} of {labels[symbol.name]}"


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
    """One hypothesis, where it is known which buffer was to be made, or one value explains any."""
    for _, facts in case.logs:
        error = facts.root
        if error is None or "out_of_memory" not in error.candidates:
            continue
        asked = error.fields.get("bytes", "")
        grown = list(_explaining(int(asked), case)) if asked.isdigit() else []
        named = [one for one in grown if one.buffer.name in _named(facts)] or grown
        if len({(one.symbol, one.value) for one in named}) == 1:
            yield _data_size_suspect(named[0], error, case)
            return


def _named(facts: LogFacts) -> set[str]:
    """The buffers that failed calls of the runtime were to make."""
    calls = [error.fields["arguments"] for error in facts.errors if error.family.id == "shim_call"]
    return {name for arguments in calls for name in _MADE.findall(arguments)}


def _explaining(asked: int, case: DiagnosisState) -> Iterator[_Grown]:
    if case.view is None or case.package is None or case.given is None:
        return
    sizes = symbol_values(case.package.signature, case.given.tensors)
    for buffer in case.view.wrapper.buffers.values():
        names = {name for each in buffer.sizes or () for name in names_in(each)} - sizes.keys()
        symbols = case.view.wrapper.symbols
        open_ones = [name for name in names if name in symbols and symbols[name].unbacked]
        source = next((s for s in origins(" ".join(open_ones), symbols) if s.tensor), None)
        if buffer.kind != "allocated" or len(names) != 1 or source is None:
            continue
        value = _value(buffer, open_ones[0], sizes, asked)
        if value is not None:
            yield _Grown(buffer, open_ones[0], source, value)


def _value(buffer: Buffer, name: str, sizes: dict[str, int], asked: int) -> int | None:
    """What the one open size has to be, where the buffer's size is a multiple of it."""
    once, twice = (_data_size_bytes(buffer, {**sizes, name: number}) for number in (1, 2))
    if once is None or twice is None or once < 1 or twice != 2 * once or asked % once:
        return None
    return asked // once


def _data_size_bytes(buffer: Buffer, sizes: dict[str, int]) -> int | None:
    values = [evaluate(each, sizes) for each in buffer.sizes or ()]
    known = [int(value) for value in values if value is not None]
    item = ITEM_SIZES.get(buffer.dtype or "")
    return prod(known) * item if item and len(known) == len(values) else None


def _data_size_suspect(grown: _Grown, error: ErrorFact, case: DiagnosisState) -> Suspect:
    asked = error.fields["bytes"]
    launch, item = _data_size_writer(grown, case), _input(grown, case)
    fact = (
        f"{grown.buffer.name} needs {asked} bytes where {grown.symbol}, a value of the data, is {grown.value}"
    )
    behind = f" It is computed from {item.label}." if item is not None else ""
    return Suspect(
        category="out_of_memory",
        guilty=_party(grown, launch, item, case),
        summary=f"There is no memory for {asked} bytes: {fact}.{behind}",
        level=CausalLevel.CALL,
        evidence=(said(error), Evidence(step="inspect_package", fact=fact)),
        fix=Fix(action="check the values that become a size before the call, and refuse what is too large"),
        intervention=_modest(item, case),
    )


def _data_size_writer(grown: _Grown, case: DiagnosisState) -> int | None:
    """The launch that computes the value; None where an input is read as it is."""
    assert case.view is not None and grown.source.tensor is not None
    return next(iter(case.view.writers_of_name.get(grown.source.tensor, ())), None)


def _input(grown: _Grown, case: DiagnosisState) -> CompiledInput | None:
    """The only input that the value is computed from."""
    assert case.view is not None and case.package is not None
    launch = _data_size_writer(grown, case)
    labels = case.view.inputs_behind(launch) if launch is not None else []
    names = {grown.source.tensor} if launch is None else set()
    found = [item for item in case.package.inputs if item.label in labels or item.name in names]
    return found[0] if len(found) == 1 else None


def _party(grown: _Grown, launch: int | None, item: CompiledInput | None, case: DiagnosisState) -> Component:
    assert case.view is not None
    made = (
        launch_component(launch, case.view.wrapper.launches[launch].kernel, case)
        if launch is not None
        else None
    )
    lines = made.model_locations[:3] if made is not None else []
    value = f"makes {grown.symbol} {grown.value}"
    places = [*lines, *case.call_locations[:1]]
    if item is not None:
        return Component(
            kind="input",
            name=item.path or item.name,
            input_index=item.index,
            value=value,
            model_locations=places,
        )
    party = made if made is not None else Component(kind="call", name="the call's inputs")
    return party.model_copy(update={"value": value, "model_locations": places})


def _modest(item: CompiledInput | None, case: DiagnosisState) -> Intervention | None:
    """The call with small values there. It can only confirm: they may be needed for another reason."""
    if item is None or not (item.dtype or "").startswith(("int", "uint")):
        return None
    test = keep_in_range(Leaf(item.index, item.path or item.name), -MODEST, MODEST)
    trial = case.trials.get(test.key)
    return test if trial is None or trial.proves else None
