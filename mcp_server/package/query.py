"""Answers questions about a package as lists of facts. Pure: nothing runs."""

from __future__ import annotations

from collections.abc import Iterable

from mcp_server.errors import ProblemError
from mcp_server.package.advice import explain, propose
from mcp_server.package.assertion import Candidate, read_assertion
from mcp_server.package.bounds import plain, resolve_bound
from mcp_server.package.buffers import Buffer
from mcp_server.package.constants import CompiledConstant
from mcp_server.package.facts import (
    AssertionFact,
    BufferFact,
    ConstantFact,
    InputFact,
    KernelFact,
    LaunchFact,
    SymbolFact,
)
from mcp_server.package.kernel_code import find_asserts
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.signature import CompiledInput
from mcp_server.package.symbols import Symbol
from mcp_server.package.view import PackageView

_LISTED = 12
_NAMES = 100
FOLDING = "constant folding, once before the first call (_const_run_impl)"


def launch_facts(view: PackageView, numbers: Iterable[int], *, brief: bool = False) -> list[LaunchFact]:
    """Launches by number. Raises `ProblemError` for a number that does not exist."""
    return [_launch_fact(view, _launch(view, number), brief) for number in numbers]


def _launch(view: PackageView, number: int) -> Launch:
    launches = view.wrapper.launches
    if not 0 <= number < len(launches):
        raise ProblemError(
            "the package has no launch of this number", value=number, allowed=_range(len(launches))
        )
    return launches[number]


def _range(count: int) -> str:
    return f"0 to {count - 1}" if count else "none: no launch could be read"


def _launch_fact(view: PackageView, launch: Launch, brief: bool) -> LaunchFact:
    provenance = view.provenance(launch)
    shown = [a for a in launch.arguments if a.kind != "context"]
    return LaunchFact(
        index=launch.index,
        kernel=launch.kernel,
        kind=launch.kind,
        line=launch.line,
        arguments=[_argument(view, a) for a in shown if not brief or a.is_tensor],
        reads_from=[] if brief else _reads_from(view, launch),
        grid=[] if brief else [plain(part) for part in view.wrapper.grid(launch)],
        within=_within(launch),
        checked=launch.checked,
        nodes=list((provenance.post_grad or launch.sources)[:_LISTED]),
        operators=list(launch.atens[:_LISTED]),
        model=list(provenance.locations[:_LISTED]),
        folded_frames=provenance.folded,
        told_by=provenance.source,
    )


def _within(launch: Launch) -> list[str]:
    blocks = [block.header for block in launch.context if block.kind != "scope"]
    return blocks if launch.function == "run_impl" else [FOLDING, *blocks]


def folding_facts(
    view: PackageView, *, kernel: str | None = None, constant: str | None = None
) -> list[LaunchFact]:
    """The launches of constant folding, of one kernel, or behind one constant; numbered on their own."""
    launches = view.folding_launches(constant)
    return [_launch_fact(view, n, False) for n in launches if kernel in (None, n.kernel, n.symbol)]


def _argument(view: PackageView, argument: Argument) -> str:
    name = argument.name or f"argument {argument.position}"
    if not argument.is_tensor:
        return f"{name}: {plain(argument.expression)}"
    shape = f" as [{', '.join(map(plain, argument.view.sizes))}]" if argument.view else ""
    return f"{name}: {view.label(argument.target)}{shape} [{argument.role}]"


def _reads_from(view: PackageView, launch: Launch) -> list[str]:
    found = []
    flow = view.flow_of(launch)
    for name in launch.reads:
        writers = [s.launch for s in flow.last_writers(name, launch.index) if s.launch is not None]
        if writers:
            found.append(f"{name} was last written by launch {', '.join(map(str, writers))}")
    return found


def kernel_fact(view: PackageView, name: str, *, source: bool = True) -> KernelFact:
    """A kernel by its name in the wrapper or on the device. Raises `ProblemError` when there is none."""
    kernel = _kernel(view, name)
    file = "kernel.cpp" if kernel.kind == "cpp" else "wrapper.cpp"
    return KernelFact(
        name=kernel.name,
        kind=kernel.kind,
        symbol=kernel.symbol,
        launches=view.launches_of.get(kernel.name, []),
        parameters=[f"{p.name}: {p.type} [{p.role}]" for p in kernel.parameters],
        location=f"{file}:{kernel.first_line or kernel.line}",
        asserts=[f"line {a.line}: {a.text}" for a in find_asserts(kernel.source)],
        grid=list(kernel.grid),
        warps=kernel.num_warps,
        shared_bytes=kernel.shared_bytes,
        binary=kernel.cubin,
        source=kernel.source if source else "",
    )


def _kernel(view: PackageView, name: str) -> Kernel:
    kernels = view.wrapper.kernels
    found = kernels.get(name) or next((k for k in kernels.values() if k.symbol == name), None)
    if found is None:
        known = ", ".join(sorted(kernels)[:_LISTED])
        raise ProblemError("the package has no kernel of this name", value=name, allowed=known)
    return found


def no_holder(view: PackageView) -> str:
    """Why no kernel may hold a check that an error names."""
    if missing := sourceless(view):
        return f"no kernel whose source is here holds that check; {missing}"
    return "no kernel of this package holds that check: is it the package that failed?"


def sourceless(view: PackageView) -> str:
    """That some Triton kernels' sources are not in the package; empty when all are."""
    names = [
        kernel.name for kernel in view.wrapper.kernels.values() if kernel.kind != "cpp" and not kernel.source
    ]
    if not names:
        return ""
    shown = ", ".join(names[:_LISTED])
    return (
        f"{len(names)} Triton kernels have no source in the package (torch 2.14 or later with "
        f"triton.autotune_at_compile_time=False), their checks are not known: {shown}"
    )


def is_kernel(view: PackageView, name: str) -> bool:
    """Whether the name is a compiled kernel's, and not a shim's or a custom operator's."""
    return name in view.wrapper.kernels or any(k.symbol == name for k in view.wrapper.kernels.values())


def launches_of_kernel(view: PackageView, name: str) -> list[int]:
    """Launches of a kernel, a shim (`aoti_torch_cuda_mm_out`) or a custom operator, by name."""
    if name in view.launches_of:
        return view.launches_of[name]
    nodes = view.package.proxy_nodes
    numbers = [
        launch.index
        for launch in view.wrapper.launches
        if launch.proxy_index is not None
        and launch.proxy_index < len(nodes)
        and nodes[launch.proxy_index].target == name
    ]
    return numbers or view.launches_of.get(_kernel(view, name).name, [])


def buffer_fact(view: PackageView, name: str) -> BufferFact:
    """A tensor variable of the wrapper. Raises `ProblemError` when there is none of this name."""
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
    """The last launch that reads a variable by this very name; None when it lives to the end."""
    reads = view.readers_of_name.get(buffer.name, [])
    writes = view.writers_of_name.get(buffer.name, [])
    if reads and (not writes or reads[-1] > writes[-1]):
        return reads[-1]
    following = writes[-1] + 1 if writes else None
    return following if following is not None and following < len(view.wrapper.launches) else None


def _listed(parts: tuple[str, ...] | None) -> str:
    return "not told by the wrapper" if parts is None else f"[{', '.join(map(plain, parts))}]"


def symbol_fact(view: PackageView, name: str) -> SymbolFact:
    """A symbol such as `s77` or `u0`. Raises `ProblemError` when there is none of this name."""
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
    """A model input by index, wrapper name or the caller's path. Raises `ProblemError` when there is none."""
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
    """A constant by its name in the model or in the wrapper. Raises `ProblemError` when there is none."""
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


def launches_at_line(view: PackageView, location: str) -> list[int]:
    """Launches that come from `file.py:LINE` of the model. Raises `ProblemError` when none is known."""
    file, _, line = location.rpartition(":")
    if not file or not line.isdigit():
        raise ProblemError("a model line is given as file.py:LINE", value=location)
    found = {
        number
        for (known, at), numbers in view.launches_at.items()
        if at == int(line) and (known == file or known.endswith(f"/{file}"))
        for number in numbers
    }
    if not found:
        raise ProblemError(
            "no launch is known to come from this line", value=location, allowed=_known_lines(view)
        )
    return sorted(found)


def _known_lines(view: PackageView) -> str:
    lines = [f"{file.rpartition('/')[2]}:{line}" for file, line in sorted(view.launches_at)]
    return ", ".join(lines[:_LISTED]) or "none: compile with INDUCTOR_PROVENANCE=1 to have model lines"


def assertion_facts(
    view: PackageView, text: str, file: str | None = None, line: int | None = None, kernel: str | None = None
) -> list[AssertionFact]:
    """Every launch that an index assertion fits. Raises `ProblemError` when the text holds none.

    The list is empty when no kernel of the package holds that check.
    """
    assertion = read_assertion(text, file, line, kernel)
    if assertion is None:
        raise ProblemError(
            "the text holds no index assertion",
            value=text[:200],
            allowed="index out of bounds: 0 <= tmp6 < ks0",
        )
    return [_assertion_fact(candidate) for candidate in view.tracer.trace(assertion)]


def _assertion_fact(candidate: Candidate) -> AssertionFact:
    return AssertionFact(
        launch=candidate.launch.index,
        kernel=candidate.kernel.name,
        location=candidate.location,
        condition=candidate.check.text,
        bound=candidate.bound.describe() if candidate.bound else "none",
        lowest=candidate.lowest,
        facts=list(explain(candidate)),
        index_from=[source.label for source in candidate.sources],
        model=list(candidate.provenance.locations),
        told_by=candidate.provenance.source,
        fix=propose(candidate),
    )
