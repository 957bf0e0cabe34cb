"""Answers queries about buffers, symbols, inputs and constants of a package as records. Nothing runs."""

from __future__ import annotations

from mcp_server.errors import ProblemError
from mcp_server.package.constants import CompiledConstant
from mcp_server.package.launches import Buffer
from mcp_server.package.query import BufferFact, ConstantFact, InputFact, SymbolFact
from mcp_server.package.signature import CompiledInput
from mcp_server.package.symbols import Symbol, plain, resolve_bound
from mcp_server.package.view import PackageView

_LISTED = 12
_NAMES = 100


def buffer_fact(view: PackageView, name: str) -> BufferFact:
    """A tensor variable of the wrapper. Raises `ProblemError` for an unknown name."""
    buffer = view.wrapper.buffers.get(name)
    if buffer is None:
        known = ", ".join(list(view.wrapper.buffers)[:_LISTED])
        raise ProblemError("the wrapper has no tensor of this name", value=name, allowed=f"{known}, …")
    behind = view.flow.backward(name, _last_use(view, buffer))
    return BufferFact(
        name=name,
        kind=buffer.kind,
        line=buffer.line,
        shape=_listed(buffer.sizes),
        strides=_listed(buffer.strides),
        dtype=buffer.dtype or "",
        device=buffer.device or "",
        base=buffer.base or "",
        shares_memory_with=[n for n in view.sharing[buffer.storage] if n != name][:_NAMES],
        written_by=view.writers.get(buffer.storage, [])[:_NAMES],
        read_by=view.readers.get(buffer.storage, [])[:_NAMES],
        computed_by=list(behind.launches[-_NAMES:]),
        computed_by_launches=len(behind.launches),
        from_inputs=[view.label(n) for n in behind.inputs],
        from_constants=[view.label(n) for n in behind.constants[:_LISTED]],
        never_set=list(behind.unset),
        freed_at_line=view.wrapper.run.freed.get(name),
    )


def _last_use(view: PackageView, buffer: Buffer) -> int | None:
    """The last launch that reads the variable by this name; None if it lives to the end."""
    reads = view.readers_of_name.get(buffer.name, [])
    writes = view.writers_of_name.get(buffer.name, [])
    if reads and (not writes or reads[-1] > writes[-1]):
        return reads[-1]
    following = writes[-1] + 1 if writes else None
    return following if following is not None and following < len(view.wrapper.launches) else None


def _listed(parts: tuple[str, ...] | None) -> str:
    return "not told by the wrapper" if parts is None else f"[{', '.join(map(plain, parts))}]"


def symbol_fact(view: PackageView, name: str) -> SymbolFact:
    """A symbol such as `s77` or `u0`. Raises `ProblemError` for an unknown name."""
    symbol = view.wrapper.symbols.get(name)
    if symbol is None:
        known = ", ".join(view.wrapper.symbols) or "none: all shapes are static"
        raise ProblemError("the wrapper has no symbol of this name", value=name, allowed=known)
    lines = view.wrapper.uses(name)
    return SymbolFact(
        name=name,
        definition=f"{name} = {plain(symbol.expression)}",
        line=symbol.line,
        meaning=_meaning(view, symbol),
        known_only_at_run_time=symbol.unbacked or symbol.kind == "value",
        lines=list(lines[:_NAMES]),
        used_on_lines=len(lines),
        launches=view.launches_naming.get(name, [])[:_NAMES],
        used_by_launches=len(view.launches_naming.get(name, [])),
    )


def _meaning(view: PackageView, symbol: Symbol) -> str:
    if symbol.kind == "value":
        return f"a value of {view.label(symbol.tensor)}, read back while running"
    launch = next(iter(view.wrapper.launches), None)
    if launch is None:
        return plain(symbol.expression)
    return resolve_bound(symbol.name, launch, view.wrapper.symbols, view.package.inputs).describe()


def input_fact(view: PackageView, wanted: str) -> InputFact:
    """A model input by index, wrapper name or caller's path. Raises `ProblemError` if unknown."""
    for compiled in view.package.inputs:
        if wanted in (str(compiled.index), compiled.name, compiled.path):
            return _input_fact(view, compiled)
    known = ", ".join(f"{i.index} ({i.path or i.name})" for i in view.package.inputs)
    raise ProblemError("the package has no such input", value=wanted, allowed=known or "none")


def _input_fact(view: PackageView, compiled: CompiledInput) -> InputFact:
    buffer = view.wrapper.buffers.get(compiled.name)
    ahead = view.flow.forward([compiled.name])
    return InputFact(
        index=compiled.index,
        name=compiled.name,
        path=compiled.path or "",
        dtype=compiled.dtype or "",
        shape=compiled.shape,
        ranges=[
            f"dim {d.index}: {_end(d.lower)} to {_end(d.upper)}"
            for d in compiled.dims
            if d.lower is not None or d.upper is not None
        ],
        read_by=view.readers.get(buffer.storage, [])[:_NAMES] if buffer else [],
        written_by=view.writers.get(buffer.storage, [])[:_NAMES] if buffer else [],
        reaches=list(ahead.launches[:_NAMES]),
        reaches_launches=len(ahead.launches),
        reaches_outputs=list(ahead.outputs),
    )


def _end(limit: int | None) -> str:
    return "unchecked" if limit is None else str(limit)


def constant_fact(view: PackageView, wanted: str) -> ConstantFact:
    """A constant by its name in the model or wrapper. Raises `ProblemError` if unknown."""
    for constant in view.package.constants:
        if wanted in (constant.fqn, constant.name):
            return _constant_fact(view, constant)
    known = ", ".join(c.fqn for c in view.package.constants[:_LISTED])
    raise ProblemError("the package has no such constant", value=wanted, allowed=known or "none")


def _constant_fact(view: PackageView, constant: CompiledConstant) -> ConstantFact:
    buffer = view.wrapper.buffers.get(constant.name)
    return ConstantFact(
        index=constant.index,
        name=constant.name,
        fqn=constant.fqn,
        dtype=constant.dtype,
        shape=list(constant.shape),
        kind=constant.kind,
        read_by=view.readers.get(buffer.storage, [])[:_NAMES] if buffer else [],
        written_by=view.writers.get(buffer.storage, [])[:_NAMES] if buffer else [],
    )
