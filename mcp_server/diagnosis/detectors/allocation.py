"""A request that memory did not suffice for: the buffer of the package that has that size."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.diagnosis.parties import launch_party
from mcp_server.evidence.facts import ErrorFact
from mcp_server.evidence.journal import ITEM_SIZES
from mcp_server.model import Evidence, Fix
from mcp_server.package.arithmetic import evaluate, names_in
from mcp_server.package.buffers import Buffer
from mcp_server.package.ranges import symbol_values

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
ROUNDING = 0.01  # CUDA's text has two decimals, and its allocator rounds up


def detect(case: Case) -> Iterator[Hypothesis]:
    """One hypothesis for the first buffer whose size in this call is the request that failed."""
    if case.view is None or case.given is None or case.package is None:
        return
    sizes = symbol_values(case.package.signature, case.given.tensors)
    for source, facts in case.logs:
        asked = _asked(facts.root) if facts.root is not None else None
        found = _buffer(asked, sizes, case) if asked else None
        if found is not None and facts.root is not None:
            yield _hypothesis(found, sizes, facts.root, source, case)
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
        if (
            size is not None
            and abs(size - asked) <= ROUNDING * asked
            and case.view.writers_of_name.get(buffer.name)
        ):
            return buffer
    return None


def _bytes(buffer: Buffer, sizes: dict[str, int]) -> int | None:
    """Its size in this call; None where the wrapper does not say."""
    values = [evaluate(each, sizes) for each in buffer.sizes or ()]
    known = [int(value) for value in values if value is not None]
    item = ITEM_SIZES.get(buffer.dtype or "")
    return prod(known) * item if item and known and len(known) == len(values) else None


def _hypothesis(
    buffer: Buffer, sizes: dict[str, int], root: ErrorFact, source: str, case: Case
) -> Hypothesis:
    assert case.view is not None
    number = case.view.writers_of_name[buffer.name][0]
    party = launch_party(number, case.view.wrapper.launches[number].kernel, case)
    shape = " x ".join(str(evaluate(each, sizes)) for each in buffer.sizes or ())
    dims = ", ".join(_dims(buffer, case))
    grows = f"; it grows with {dims}" if dims else ""
    fact = f"{buffer.name}, which launch {number} ({party.name}) writes, is {shape} of {buffer.dtype} here"
    return Hypothesis(
        category="out_of_memory",
        guilty=party.model_copy(
            update={
                "value": f"{_bytes(buffer, sizes)} bytes",
                "model_locations": [*party.model_locations[:3], *case.call_locations[:1]],
            }
        ),
        summary=f"There is no memory for {_bytes(buffer, sizes)} bytes: {fact}{grows}.",
        depth=Depth.CALL,
        sources=frozenset({"log", "package file"}),
        evidence=(
            Evidence(step="run", fact=root.text[:300], source=f"{source}:{root.line}"),
            Evidence(step="inspect_package", fact=fact),
        ),
        fix=Fix(action=f"call it with smaller parts{f' ({dims})' if dims else ''}, or give it more memory"),
        exact=False,
    )


def _dims(buffer: Buffer, case: Case) -> Iterator[str]:
    """The dimensions of inputs that the buffer's size is computed from."""
    assert case.package is not None
    names = {name for each in buffer.sizes or () for name in names_in(each)}
    labels = {item.name: item.label for item in case.package.inputs}
    for symbol in case.package.signature.symbols:
        if symbol.symbol in names and symbol.name in labels:
            yield f"dimension {symbol.dim} of {labels[symbol.name]}"
