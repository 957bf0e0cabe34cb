"""A request that memory did not suffice for: the buffer of the package that has that size."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind
from mcp_server.diagnosis.parties import launch_party
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.facts import ErrorFact
from mcp_server.evidence.journal import ITEM_SIZES
from mcp_server.model import Evidence, Fix
from mcp_server.package.arithmetic import evaluate, names_in
from mcp_server.package.buffers import Buffer
from mcp_server.package.ranges import symbol_values

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SMALL = 64 << 20  # bytes that any machine has, for the call that is to pass
SMALLEST = 2  # export takes every dynamic size to be at least that
_LIMITED = {"RLIMIT_AS": "address space", "RLIMIT_DATA": "private memory"}
ROUNDING = 0.01  # CUDA's text has two decimals, and its allocator rounds up


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for the first buffer whose size in this call is the request that failed."""
    if case.view is None or case.given is None or case.package is None:
        return
    sizes = symbol_values(case.package.signature, case.given.tensors)
    for source, facts in case.logs:
        asked = _asked(facts.root) if facts.root is not None else None
        found = _buffer(asked, sizes, case) if asked else None
        if found is not None and facts.root is not None:
            yield _suspect(found, sizes, facts.root, source, case)
            return


def _asked(root: ErrorFact) -> float | None:
    """Bytes of the request, where the text tells them."""
    if "out_of_memory" not in root.candidates:
        return None
    if root.fields.get("bytes", "").isdigit():
        return float(root.fields["bytes"])
    number, _, unit = root.fields.get("asked", "").partition(" ")
    return float(number) * UNITS[unit] if unit in UNITS else None


def _buffer(asked: float, sizes: dict[str, int], case: Case) -> Buffer | None:
    assert case.view is not None
    for buffer in case.view.wrapper.buffers.values():
        size = _bytes(buffer, sizes) if buffer.kind == "allocated" else None
        if size is not None and abs(size - asked) <= ROUNDING * asked and _writer(buffer, case) is not None:
            return buffer
    return None


def _writer(buffer: Buffer, case: Case) -> int | None:
    """The first launch that writes its memory, under whatever name."""
    assert case.view is not None
    names = case.view.sharing[buffer.storage]
    return min((n for name in names for n in case.view.writers_of_name.get(name, ())), default=None)


def _bytes(buffer: Buffer, sizes: dict[str, int]) -> int | None:
    """Its size in this call; None where the wrapper does not say."""
    values = [evaluate(each, sizes) for each in buffer.sizes or ()]
    known = [int(value) for value in values if value is not None]
    item = ITEM_SIZES.get(buffer.dtype or "")
    return prod(known) * item if item and known and len(known) == len(values) else None


def _suspect(buffer: Buffer, sizes: dict[str, int], root: ErrorFact, source: str, case: Case) -> Suspect:
    assert case.view is not None
    number = _writer(buffer, case)
    assert number is not None
    party = launch_party(number, case.view.wrapper.launches[number].kernel, case)
    shape = " x ".join(str(evaluate(each, sizes)) for each in buffer.sizes or ())
    dims = ", ".join(_dims(buffer, case))
    grows = f"; it grows with {dims}" if dims else ""
    fact = f"{buffer.name}, which launch {number} ({party.name}) writes, is {shape} of {buffer.dtype} here"
    return Suspect(
        category="out_of_memory",
        guilty=party.model_copy(
            update={
                "value": f"{_bytes(buffer, sizes)} bytes",
                "model_locations": [*party.model_locations[:3], *case.call_locations[:1]],
            }
        ),
        summary=f"There is no memory for {_bytes(buffer, sizes)} bytes: {fact}{grows}.",
        level=CausalLevel.CALL,
        evidence=(
            Evidence(step="run", fact=root.text[:300], source=f"{source}:{root.line}"),
            Evidence(step="inspect_package", fact=fact),
            *_limit(case),
        ),
        fix=Fix(action=f"call it with smaller parts{f' ({dims})' if dims else ''}, or give it more memory"),
        intervention=_with_less(buffer, sizes, case),
    )


def _limit(case: Case) -> Iterator[Evidence]:
    """What the program itself left for the call, where it, or its shell, limited its address space."""
    call = case.capture.failing if case.capture is not None else None
    if call is not None and call.headroom is not None:
        name = call.headroom_of or "RLIMIT_AS"
        fact = (
            f"the limit on the process's {_LIMITED.get(name, 'memory')} ({name}) left {call.headroom} bytes"
        )
        yield Evidence(step="capture", fact=fact)


def _with_less(buffer: Buffer, sizes: dict[str, int], case: Case) -> Intervention | None:
    """The call with smaller inputs. It can only confirm: what is cut may be needed for another reason."""
    changes = tuple(_cut(_less(buffer, sizes), case))
    cuts = ", ".join(f"dimension {c.dim} of input {c.input} cut to {c.size}" for c in changes)
    test = Intervention(f"less:{buffer.name}", Kind.INPUT, f"the call with {cuts}", changes)
    trial = case.trials.get(test.key)
    return test if changes and (trial is None or trial.proves) else None


def _less(buffer: Buffer, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes, with those that the buffer's follow from halved until it is small."""
    names, less = _symbols(buffer), dict(sizes)
    while (_bytes(buffer, less) or 0) > SMALL and any(less.get(name, 0) > SMALLEST for name in names):
        less = {name: max(size // 2, SMALLEST) if name in names else size for name, size in less.items()}
    return less


def _cut(sizes: dict[str, int], case: Case) -> Iterator[Change]:
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


def _dims(buffer: Buffer, case: Case) -> Iterator[str]:
    """The dimensions of inputs that the buffer's size is computed from."""
    assert case.package is not None
    names = _symbols(buffer)
    labels = {item.name: item.label for item in case.package.inputs}
    for symbol in case.package.signature.symbols:
        if symbol.symbol in names and symbol.name in labels:
            yield f"dimension {symbol.dim} of {labels[symbol.name]}"
