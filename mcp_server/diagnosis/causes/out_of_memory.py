"""A request beyond the available memory: its buffer, the origin of its size, and what fills the memory.

The error of a request shows only the launch that asked last. The capture hook sees what fills the memory:
outputs whose memory is still in use, and packages that were not released.
"""

import re
from collections.abc import Iterator, Mapping
from math import prod

from mcp_server.diagnosis.components import component, confirming, launch_component, reported, seen
from mcp_server.diagnosis.interventions.base import Intervention, Kind
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCall, HoldsOutputs
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Component, Evidence, Fix
from mcp_server.package.launches import Buffer
from mcp_server.package.symbols import names_in
from mcp_server.package.terms.sizes import evaluate
from mcp_server.package.terms.term import itemsize_of
from mcp_server.package.view import PackageView
from mcp_server.plurals import counted, was
from mcp_server.worker.protocol import Change

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SMALL = 64 << 20  # bytes that any machine has, enough for a call that should pass
SMALLEST = 2  # export assumes that every dynamic size is at least 2
_LIMITED = {"RLIMIT_AS": "address space", "RLIMIT_DATA": "private memory"}
ROUNDING = 0.01  # CUDA's text has two decimals, and its allocator rounds up

Sizes = Mapping[str, int]  # by symbol of a package: its value in this call


def _bytes(buffer: Buffer, sizes: Sizes) -> int | None:
    """The buffer's size in bytes in this call. None if the wrapper does not tell."""
    values = [evaluate(each, sizes) for each in buffer.sizes or ()]
    known = [int(value) for value in values if value is not None]
    whole = len(known) == len(values)
    return prod(known) * itemsize_of(buffer.dtype) if buffer.dtype and whole else None


def _first_writer(buffer: Buffer, view: PackageView) -> int | None:
    """The first launch that writes the buffer's memory, under any name."""
    names = view.sharing[buffer.storage]
    return min((n for name in names for n in view.writers_of_name.get(name, ())), default=None)


def _written(buffer: Buffer, writer: str, case: DiagnosisState) -> str:
    shape = " x ".join(str(evaluate(each, case.sizes)) for each in buffer.sizes or ())
    return f"{buffer.name}, which {writer} writes, is {shape} of {buffer.dtype}"


def _symbols(buffer: Buffer) -> set[str]:
    return {name for each in buffer.sizes or () for name in names_in(each)}


def detect_allocation(case: DiagnosisState) -> Iterator[Suspect]:
    """The outputs that fill the memory, or the first buffer whose size in this call is the failed request."""
    holding = _holding(case)
    if holding is not None:
        yield _of_outputs(holding, case)
        return
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
            writer = _first_writer(buffer, case.view)
            if writer is not None:
                yield _of_buffer(buffer, writer, reported(root, source), case)
                return


def _holding(case: DiagnosisState) -> HoldsOutputs | None:
    """The call or check that failed while earlier outputs held more memory than it requested."""
    asked = [asked_for(root) or 0 for _, root in case.roots if "out_of_memory" in root.candidates]
    end = case.captured.failing or next(reversed(case.captured.ends), None)
    if not asked or end is None or end.kept_bytes < max(LARGE, *asked):
        return None
    return end if end.kept_calls > 1 else None  # the outputs of one call may still be in a variable


def _of_outputs(holding: HoldsOutputs, case: DiagnosisState) -> Suspect:
    """The outputs of earlier calls that the program still held when its memory ran out."""
    size = f"{holding.kept_bytes / UNITS['GiB']:.3g} GiB"
    if holding.kept_bytes < UNITS["GiB"]:
        size = f"{holding.kept_bytes / UNITS['MiB']:.3g} MiB"
    calls, value = counted(holding.kept_calls, "earlier call"), f"{holding.kept_bytes} bytes"
    facts = [reported(root, source) for source, root in case.roots if asked_for(root)][:1]
    facts.append(seen("capture", f"{counted(holding.kept_outputs, 'block')} of their memory were in use"))
    if case.failure_of("plain") == "none":
        facts.append(seen("run", "made alone, without these outputs, the call returns"))
    return Suspect(
        category="out_of_memory",
        guilty=component("script", "outputs of calls", holding.stack[:2], value=value),
        summary=f"There is not enough memory, because the outputs of {calls} are still in use: {size}. "
        "The program keeps them, or views of them.",
        level=CausalLevel.STATE,
        evidence=tuple(facts),
        fix=Fix(text=KEEP_LESS),
    )


KEEP_LESS = "copy what is needed of an output (.clone()), and drop the output: a view of it keeps all of it"
LARGE = 32 << 20  # bytes that justify a change
SEVERAL = 3  # so many loaders are more than a program needs
GROWS = 1.5  # the program keeps outputs if later it holds this many times the blocks


def held(case: DiagnosisState) -> list[CapturedCall]:
    """The calls after which the hook counted what the program holds."""
    return [call for call in case.captured.calls if call.after]


def memory_facts(case: DiagnosisState) -> list[Evidence]:
    """How much memory of outputs, and how many loaded packages, the program kept between calls."""
    return [
        seen(
            "capture",
            f"after {counted(each.after, 'call')}, {counted(each.kept_outputs, 'block')} of memory "
            f"of outputs {was(each.kept_outputs)} in use ({each.kept_bytes / 1e6:.3g} MB), "
            f"and {counted(each.loaders, 'loader')}",
        )
        for each in held(case)[-2:]
    ]


def no_use_of_memory(case: DiagnosisState) -> str:
    """Say that the program holds little, or not more after more calls. Empty if this was not counted."""
    if case.symptom.seen != "memory" or not held(case):
        return ""
    fact = memory_facts(case)[-1].fact
    little = max(call.kept_bytes for call in held(case)) < LARGE
    what = "the outputs of calls hold little memory" if little else "the memory of outputs stops growing"
    return f"No fault found: {what}. {fact[0].upper()}{fact[1:]}."


def detect_use_of_memory(case: DiagnosisState) -> Iterator[Suspect]:
    """The largest use of memory in a program that ends well, if the user asks about memory."""
    if case.symptom.seen != "memory" or not case.healthy:
        return
    found = [*_kept_outputs(case), *_loaders(case), *largest_buffer(case)]
    if found:
        yield max(found, key=lambda each: each[0])[1]


def _uses(party: Component, summary: str, evidence: list[Evidence], fix: str) -> Suspect:
    return Suspect(
        category="cost",
        guilty=party,
        summary=summary,
        level=CausalLevel.CALL,
        evidence=tuple(evidence),
        fix=Fix(text=fix),
        settle="A run of the changed program shows what it saves.",
    )


def _kept_outputs(case: DiagnosisState) -> Iterator[tuple[int, Suspect]]:
    """Outputs of earlier calls, if more of them are in use after more calls."""
    counts = held(case)[-2:]
    if len(counts) < 2 or counts[1].kept_outputs < GROWS * counts[0].kept_outputs:
        return
    last, size = counts[1], counts[1].kept_bytes
    if size >= LARGE:
        party = component("script", "outputs of calls", last.stack[:1], value=f"{size} bytes")
        summary = f"The program keeps the memory of {counted(last.kept_outputs, 'output')} after "
        summary += f"{counted(last.after, 'call')}, {size / 1e6:.4g} MB, and more with each call."
        yield size, _uses(party, summary, memory_facts(case), KEEP_LESS)


def _loaders(case: DiagnosisState) -> Iterator[tuple[int, Suspect]]:
    """Several loaders in use at the same time: each has its own weights."""
    loads, count = case.captured.loads, max((each.loaders for each in held(case)), default=0)
    size = sum(sorted(load.bytes for load in loads)[-count:]) if count else 0
    if count >= SEVERAL and size >= LARGE:
        party = component("script", loads[-1].package.name, loads[-1].stack[:1], value=f"{size} bytes")
        summary = (
            f"{count} loaders are in use at the same time. Their packages have {size / 1e6:.4g} MB in all, "
        )
        summary += "and each loader has its own copy of the weights."
        fix = "load the package once, and share the loader: num_runners allows calls side by side"
        yield size, _uses(party, summary, memory_facts(case), fix)


def largest_buffer(case: DiagnosisState) -> Iterator[tuple[int, Suspect]]:
    """The largest buffer that the package allocates in a call."""
    if case.view is None or case.given is None:
        return
    allocated = [b for b in case.view.wrapper.buffers.values() if b.kind == "allocated" and b.sizes]
    known = [(size, b) for b in allocated if (size := _bytes(b, case.sizes)) is not None]
    size, buffer = max(known, key=lambda each: each[0], default=(0, None))
    launch = _first_writer(buffer, case.view) if buffer is not None else None
    if buffer is None or size < LARGE or launch is None:
        return
    party = launch_component(launch, case.launches[launch].kernel, case)
    total = sum(each for each, _ in known) / 1e6
    fact = f"{_written(buffer, f'launch {launch}', case)}: {size / 1e6:.4g} MB"
    summary = f"The largest buffer that the package allocates in a call is {fact}. All its buffers add up to "
    summary += (
        f"{total:.4g} MB, not all in use at the same time. An operator may allocate more for its result."
    )
    code = " ".join(each.code or "" for each in party.model_locations)
    fixes = (fix for name, fix in _SMALLER.items() if re.search(rf"\b{name}\(", code))
    parts = "compute this in parts, over chunks of one dimension, or without the intermediate result"
    fix = next(fixes, parts)
    party = party.model_copy(update={"value": f"{size} bytes"})
    yield size, _uses(party, summary, [seen("inspect_package", fact)], fix)


# By operator in a model line: a form with the same result and without the large intermediate.
_SMALLER = {
    "one_hot": "take rows instead of a product with a one-hot matrix: F.embedding(ids, weight), or "
    "F.embedding_bag for their sum",
    "repeat": "use expand, which copies nothing, instead of repeat",
}


def asked_for(root: ErrorFact) -> float | None:
    """The number of bytes requested. None if the text does not tell."""
    if "out_of_memory" not in root.candidates:
        return None
    if root.fields.get("bytes", "").isdigit():
        return float(root.fields["bytes"])
    number, _, unit = root.fields.get("asked", "").partition(" ")
    return float(number) * UNITS[unit] if unit in UNITS else None


def _of_buffer(buffer: Buffer, writer: int, error: Evidence, case: DiagnosisState) -> Suspect:
    sizes = case.sizes
    party = launch_component(writer, case.launches[writer].kernel, case)
    names, labels = _symbols(buffer), {item.name: item.label for item in case.compiled_inputs}
    dims = ", ".join(
        f"dimension {symbol.dim} of {labels[symbol.name]}"
        for symbol in (case.package.signature.symbols if case.package is not None else ())
        if symbol.symbol in names and symbol.name in labels
    )
    size, lines = f"{_bytes(buffer, sizes)} bytes", [*party.model_locations[:3], *case.call_locations[:1]]
    fact = f"{_written(buffer, f'launch {writer} ({party.name})', case)} here"
    facts = [error, seen("inspect_package", fact)]
    # The memory left for the call, if the program or its shell limited it.
    call = case.captured.failing
    if call is not None and call.headroom is not None:
        limit = call.headroom_of or "RLIMIT_AS"
        what = _LIMITED.get(limit, "memory")
        left = f"the limit on the process's {what} ({limit}) left {call.headroom} bytes"
        facts.append(seen("capture", left))
    return Suspect(
        category="out_of_memory",
        guilty=party.model_copy(update={"value": size, "model_locations": lines}),
        summary=f"There is not enough memory for {size}: {fact}{f'; it grows with {dims}' if dims else ''}.",
        level=CausalLevel.CALL,
        evidence=tuple(facts),
        fix=Fix(text=f"call it with smaller parts{f' ({dims})' if dims else ''}, or give it more memory"),
        intervention=_with_less(buffer, sizes, case),
    )


def _with_less(buffer: Buffer, sizes: Sizes, case: DiagnosisState) -> Intervention | None:
    """The call with smaller inputs. It can only confirm, as the removed part may have been at fault."""
    assert case.given is not None
    names, less = _symbols(buffer), dict(sizes)
    while (_bytes(buffer, less) or 0) > SMALL and any(less.get(name, 0) > SMALLEST for name in names):
        less = {name: max(size // 2, SMALLEST) if name in names else size for name, size in less.items()}
    # Cut dimensions that depend on these sizes, and keep them in their ranges.
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
