"""Answers queries about launches, kernels, tensors, symbols and assertions of a package as records.

Nothing runs. Lists of launch numbers are cut to their first 100 (backward slices: the last 100). The count
fields next to them are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict

from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import Fix, ModelLocation, Record
from mcp_server.package.assertion import explain, propose, read_assertion
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Buffer, Launch
from mcp_server.package.symbols import names_in, plain, resolve_bound
from mcp_server.package.terms.asserts import find_asserts
from mcp_server.package.view import PackageView


class LaunchFact(Record):
    """One launch. `arguments` have the form `parameter: tensor [role]`; `reads_from` lists last writers.

    `line` is 1-based in wrapper.cpp. `checked` is false if the wrapper ignores a shim's error code. `within`
    lists the enclosing branches and loops. `model_source` names the source of `model`.
    """

    kind_of_fact: Literal["launch"] = "launch"
    index: int
    kernel: str
    kind: str
    line: int
    arguments: list[str]
    reads_from: list[str] = Field(default_factory=list)
    grid: list[str] = Field(default_factory=list)
    within: list[str] = Field(default_factory=list)
    checked: bool = True
    nodes: list[str] = Field(default_factory=list)
    operators: list[str] = Field(default_factory=list)
    model: list[ModelLocation] = Field(default_factory=list)
    folded_frames: int = 0
    model_source: str = "none"


class KernelFact(Record):
    """One kernel: source location, checks, launches. `asserts` have the form `line N: condition`."""

    kind_of_fact: Literal["kernel"] = "kernel"
    name: str
    kind: str
    symbol: str
    launches: list[int]
    parameters: list[str]
    location: str
    asserts: list[str] = Field(default_factory=list)
    grid: list[str] = Field(default_factory=list)
    warps: int | None = None
    shared_bytes: int | None = None
    binary: str = ""
    source: str = ""


class BufferFact(Record):
    """One tensor of the wrapper. `shares_memory_with` lists other names of its storage.

    Sizes and strides are expressions in elements. Slices are lists of launch numbers and names.
    """

    kind_of_fact: Literal["buffer"] = "buffer"
    name: str
    kind: str
    line: int
    shape: str
    strides: str
    dtype: str = ""
    device: str = ""
    base: str = ""
    shares_memory_with: list[str] = Field(default_factory=list)
    written_by: list[int] = Field(default_factory=list)
    read_by: list[int] = Field(default_factory=list)
    computed_by: list[int] = Field(default_factory=list)
    computed_by_launches: int = 0
    from_inputs: list[str] = Field(default_factory=list)
    from_constants: list[str] = Field(default_factory=list)
    never_set: list[str] = Field(default_factory=list)
    freed_at_line: int | None = None


class SymbolFact(Record):
    """One symbolic size: its definition in terms of inputs, and every line of run_impl that uses it."""

    kind_of_fact: Literal["symbol"] = "symbol"
    name: str
    definition: str
    line: int
    meaning: str
    known_only_at_run_time: bool
    lines: list[int]
    used_on_lines: int
    launches: list[int]
    used_by_launches: int


class InputFact(Record):
    """One model input: required properties, readers, and everything that a bad value can reach."""

    kind_of_fact: Literal["input"] = "input"
    index: int
    name: str
    path: str
    dtype: str
    shape: str
    ranges: list[str] = Field(default_factory=list)
    read_by: list[int] = Field(default_factory=list)
    written_by: list[int] = Field(default_factory=list)
    reaches: list[int] = Field(default_factory=list)
    reaches_launches: int = 0
    reaches_outputs: list[int] = Field(default_factory=list)


class ConstantFact(Record):
    """One constant: its name in the model, readers and writers."""

    kind_of_fact: Literal["constant"] = "constant"
    index: int
    name: str
    fqn: str
    dtype: str
    shape: list[int]
    kind: str
    read_by: list[int] = Field(default_factory=list)
    written_by: list[int] = Field(default_factory=list)


class AssertionFact(Record):
    """One launch at which an index assertion may have failed, with the chain of facts and a fix."""

    kind_of_fact: Literal["assertion"] = "assertion"
    launch: int
    kernel: str
    location: str
    condition: str
    bound: str
    lowest: str
    facts: list[str]
    index_from: list[str]
    model: list[ModelLocation] = Field(default_factory=list)
    model_source: str
    fix: Fix


Fact = LaunchFact | KernelFact | BufferFact | SymbolFact | InputFact | ConstantFact | AssertionFact


_LISTED = 12
_NAMES = 100
FOLDING = "constant folding, once before the first call (_const_run_impl)"


def launch_facts(view: PackageView, numbers: Iterable[int], *, brief: bool = False) -> list[LaunchFact]:
    """Launches by number. Raises `ProblemError` for an unknown number."""
    launches, numbers = view.wrapper.launches, list(numbers)
    for number in numbers:
        if not 0 <= number < len(launches):
            allowed = f"0 to {len(launches) - 1}" if launches else "none: no launch could be read"
            raise ProblemError("the package has no launch of this number", value=number, allowed=allowed)
    return [_launch_fact(view, launches[number], brief) for number in numbers]


def _launch_fact(view: PackageView, launch: Launch, brief: bool) -> LaunchFact:
    provenance = view.provenance(launch)
    shown = [a for a in launch.arguments if a.is_tensor or not (brief or a.kind == "context")]
    within = [block.header for block in launch.context if block.kind != "scope"]
    reads_from = []
    for name in launch.reads if not brief else ():
        if writers := view.flow_of(launch).writing_launches(name, launch.index):
            reads_from.append(f"{name} was last written by launch {', '.join(map(str, writers))}")
    return LaunchFact(
        index=launch.index,
        kernel=launch.kernel,
        kind=launch.kind,
        line=launch.line,
        arguments=[_argument(view, a) for a in shown],
        reads_from=reads_from,
        grid=[] if brief else [plain(part) for part in view.wrapper.grid(launch)],
        within=within if launch.function == "run_impl" else [FOLDING, *within],
        checked=launch.checked,
        nodes=list((provenance.post_grad or launch.sources)[:_LISTED]),
        operators=list(launch.atens[:_LISTED]),
        model=list(provenance.locations[:_LISTED]),
        folded_frames=provenance.folded,
        model_source=provenance.source,
    )


def folding_facts(
    view: PackageView, *, kernel: str | None = None, constant: str | None = None
) -> list[LaunchFact]:
    """Launches of constant folding, optionally of one kernel or constant. Numbered separately."""
    launches = view.folding_launches(constant)
    return [_launch_fact(view, n, False) for n in launches if kernel in (None, n.kernel, n.symbol)]


def _argument(view: PackageView, argument: Argument) -> str:
    name = argument.name or f"argument {argument.position}"
    if not argument.is_tensor:
        return f"{name}: {plain(argument.expression)}"
    shape = f" as [{', '.join(map(plain, argument.view.sizes))}]" if argument.view else ""
    return f"{name}: {view.label(argument.target)}{shape} [{argument.role}]"


def kernel_fact(view: PackageView, name: str) -> KernelFact:
    """A kernel by its name in the wrapper or on the device. Raises `ProblemError` if unknown."""
    kernel = _kernel(view, name)
    return KernelFact(
        name=kernel.name,
        kind=kernel.kind,
        symbol=kernel.symbol,
        launches=view.wrapper.launches_of.get(kernel.name, []),
        parameters=[f"{p.name}: {p.type} [{p.role}]" for p in kernel.parameters],
        location=f"{kernel.file}:{kernel.first_line or kernel.line}",
        asserts=[f"line {a.line}: {a.text}" for a in find_asserts(kernel.source)],
        grid=list(kernel.grid),
        warps=kernel.num_warps,
        shared_bytes=kernel.shared_bytes,
        binary=kernel.cubin,
        source=kernel.source,
    )


def _kernel(view: PackageView, name: str) -> Kernel:
    found = view.wrapper.kernel_named(name)
    if found is None:
        known = ", ".join(sorted(view.wrapper.kernels)[:_LISTED])
        raise ProblemError("the package has no kernel of this name", value=name, allowed=known)
    return found


def no_holder(view: PackageView) -> str:
    """Why no kernel has the check that an error names."""
    if missing := sourceless(view):
        return f"no kernel whose source is here holds that check; {missing}"
    return "no kernel of this package holds that check: is it the package that failed?"


def ambiguity(facts: Sequence[AssertionFact]) -> str:
    """A sentence if an assertion has several candidates; else empty."""
    if len(facts) < 2:
        return ""
    return f"{len(facts)} places fit; the generated file and line, or a trace, tell them apart"


def sourceless(view: PackageView) -> str:
    """A sentence if the package lacks sources of Triton kernels; else empty."""
    kernels = view.wrapper.kernels.values()
    names = [kernel.name for kernel in kernels if kernel.kind != "cpp" and not kernel.source]
    if not names:
        return ""
    shown = ", ".join(names[:_LISTED])
    return (
        f"{len(names)} Triton kernels have no source in the package (torch 2.14 or later with "
        f"triton.autotune_at_compile_time=False), their checks are not known: {shown}"
    )


def launches_of_kernel(view: PackageView, name: str) -> list[int]:
    """Launches of a kernel, a shim (`aoti_torch_cuda_mm_out`) or a custom operator, by name."""
    if name in view.wrapper.launches_of:
        return view.wrapper.launches_of[name]
    target = view.package.proxy_target
    numbers = [n.index for n in view.wrapper.launches if name and target(n.proxy_index) == name]
    return numbers or view.wrapper.launches_of.get(_kernel(view, name).name, [])


def launches_at_line(view: PackageView, location: str) -> list[int]:
    """Launches of the model line `file.py:LINE`. Raises `ProblemError` if none is known."""
    file, _, line = location.rpartition(":")
    if not file or not line.isdigit():
        raise ProblemError("a model line is given as file.py:LINE", value=location)
    known = view.launches_at
    places = [(at, n) for at, n in known if n == int(line) and (at == file or at.endswith(f"/{file}"))]
    if not places:
        lines = ", ".join([f"{at.rpartition('/')[2]}:{n}" for at, n in sorted(known)][:_LISTED])
        unknown = "none: compile with INDUCTOR_PROVENANCE=1 to have model lines"
        what = "no launch is known to come from this line"
        raise ProblemError(what, value=location, allowed=lines or unknown)
    return sorted({number for place in places for number in known[place]})


def assertion_facts(
    view: PackageView, text: str, file: str | None = None, line: int | None = None, kernel: str | None = None
) -> list[AssertionFact]:
    """Every launch that may have printed an index assertion. Raises `ProblemError` for other text.

    Empty if no kernel of the package has that check.
    """
    assertion = read_assertion(text, file, line, kernel)
    if assertion is None:
        example = "index out of bounds: 0 <= tmp6 < ks0"
        raise ProblemError("the text holds no index assertion", value=text[:200], allowed=example)
    return [
        AssertionFact(
            launch=candidate.launch.index,
            kernel=candidate.kernel.name,
            location=candidate.location,
            condition=candidate.check.text,
            bound=candidate.bound.describe() if candidate.bound else "none",
            lowest=candidate.lowest,
            facts=list(explain(candidate)),
            index_from=[source.label for source in candidate.sources],
            model=list(candidate.provenance.locations),
            model_source=candidate.provenance.source,
            fix=propose(candidate),
        )
        for candidate in view.tracer.trace(assertion)
    ]


def buffer_fact(view: PackageView, name: str) -> BufferFact:
    """A tensor variable of the wrapper. Raises `ProblemError` for an unknown name."""
    buffer = view.wrapper.buffers.get(name)
    if buffer is None:
        known = ", ".join(list(view.wrapper.buffers)[:_LISTED])
        raise ProblemError("the wrapper has no tensor of this name", value=name, allowed=f"{known}, …")
    # As of the last launch that reads the variable by this name; at the end, if it lives to it.
    reads, writes = view.readers_of_name.get(name, []), view.writers_of_name.get(name, [])
    last = reads[-1] if reads else None
    if writes and (last is None or last <= writes[-1]):
        last = writes[-1] + 1 if writes[-1] + 1 < len(view.wrapper.launches) else None
    behind = view.flow.backward(name, last)
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
        **_users(view, buffer),
        computed_by=list(behind.launches[-_NAMES:]),
        computed_by_launches=len(behind.launches),
        from_inputs=[view.label(n) for n in behind.inputs],
        from_constants=[view.label(n) for n in behind.constants[:_LISTED]],
        never_set=list(behind.unset),
        freed_at_line=view.wrapper.run.freed.get(name),
    )


def _listed(parts: tuple[str, ...] | None) -> str:
    return "not in the wrapper" if parts is None else f"[{', '.join(map(plain, parts))}]"


def symbol_fact(view: PackageView, name: str) -> SymbolFact:
    """A symbol such as `s77` or `u0`. Raises `ProblemError` for an unknown name."""
    symbol = view.wrapper.symbols.get(name)
    if symbol is None:
        known = ", ".join(view.wrapper.symbols) or "none: all shapes are static"
        raise ProblemError("the wrapper has no symbol of this name", value=name, allowed=known)
    meaning = plain(symbol.expression)
    if symbol.kind == "value":
        meaning = f"a value of {view.label(symbol.tensor)}, read back while running"
    elif view.wrapper.launches:
        first = view.wrapper.launches[0]
        meaning = resolve_bound(name, first, view.wrapper.symbols, view.package.inputs).describe()
    lines = view.wrapper.uses(name)
    passed = (
        (launch.index, a.expression)
        for launch in view.wrapper.launches
        for a in launch.arguments
        if a.kind in ("symbol", "scalar") and name in a.expression
    )
    launches = list(dict.fromkeys(number for number, text in passed if name in names_in(text)))
    return SymbolFact(
        name=name,
        definition=f"{name} = {plain(symbol.expression)}",
        line=symbol.line,
        meaning=meaning,
        known_only_at_run_time=symbol.unbacked or symbol.kind == "value",
        lines=list(lines[:_NAMES]),
        used_on_lines=len(lines),
        launches=launches[:_NAMES],
        used_by_launches=len(launches),
    )


def input_fact(view: PackageView, wanted: str) -> InputFact:
    """A model input by index, wrapper name or caller's path. Raises `ProblemError` if unknown."""
    inputs = view.package.inputs
    compiled = next((i for i in inputs if wanted in (str(i.index), i.name, i.path)), None)
    if compiled is None:
        known = ", ".join(f"{i.index} ({i.path or i.name})" for i in inputs)
        raise ProblemError("the package has no such input", value=wanted, allowed=known or "none")
    ahead = view.flow.forward([compiled.name])
    ranges = []
    for dim in compiled.dims:
        if (dim.lower, dim.upper) != (None, None):
            ends = ["unchecked" if end is None else str(end) for end in (dim.lower, dim.upper)]
            ranges.append(f"dim {dim.index}: {ends[0]} to {ends[1]}")
    return InputFact(
        index=compiled.index,
        name=compiled.name,
        path=compiled.path or "",
        dtype=compiled.dtype or "",
        shape=compiled.shape,
        ranges=ranges,
        **_users(view, view.wrapper.buffers.get(compiled.name)),
        reaches=list(ahead.launches[:_NAMES]),
        reaches_launches=len(ahead.launches),
        reaches_outputs=list(ahead.outputs),
    )


def constant_fact(view: PackageView, wanted: str) -> ConstantFact:
    """A constant by its name in the model or wrapper. Raises `ProblemError` if unknown."""
    constants = view.package.constants
    constant = next((c for c in constants if wanted in (c.fqn, c.name)), None)
    if constant is None:
        known = ", ".join(c.fqn for c in constants[:_LISTED])
        raise ProblemError("the package has no such constant", value=wanted, allowed=known or "none")
    return ConstantFact(
        index=constant.index,
        name=constant.name,
        fqn=constant.fqn,
        dtype=constant.dtype,
        shape=list(constant.shape),
        kind=constant.kind,
        **_users(view, view.wrapper.buffers.get(constant.name)),
    )


class _Users(TypedDict):
    read_by: list[int]
    written_by: list[int]


def _users(view: PackageView, buffer: Buffer | None) -> _Users:
    """The launches that read and write the memory of a tensor."""
    if buffer is None:
        return {"read_by": [], "written_by": []}
    read, written = view.readers.get(buffer.storage, []), view.writers.get(buffer.storage, [])
    return {"read_by": read[:_NAMES], "written_by": written[:_NAMES]}
