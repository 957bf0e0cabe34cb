"""Answers queries about kernels and launches of a package as records. Nothing runs.

Lists of launch numbers are cut to their first 100 (backward slices: the last 100). The count fields next to
them are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import Fix, ModelLocation, Record
from mcp_server.package.assertion import Candidate, explain, propose, read_assertion
from mcp_server.package.kernel_code import find_asserts
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.symbols import plain
from mcp_server.package.view import PackageView


class LaunchFact(Record):
    """One launch. `arguments` have the form `parameter: tensor [role]`; `reads_from` lists last writers.

    `line` is 1-based in wrapper.cpp. `checked` is false if the wrapper ignores a shim's error code. `within`
    lists the enclosing branches and loops. `told_by` names the source of `model`.
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
    told_by: str = "none"


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
    told_by: str
    fix: Fix


Fact = LaunchFact | KernelFact | BufferFact | SymbolFact | InputFact | ConstantFact | AssertionFact


_LISTED = 12
_NAMES = 100
FOLDING = "constant folding, once before the first call (_const_run_impl)"


def launch_facts(view: PackageView, numbers: Iterable[int], *, brief: bool = False) -> list[LaunchFact]:
    """Launches by number. Raises `ProblemError` for an unknown number."""
    return [_launch_fact(view, _launch(view, number), brief) for number in numbers]


def _launch(view: PackageView, number: int) -> Launch:
    launches = view.wrapper.launches
    if not 0 <= number < len(launches):
        allowed = f"0 to {len(launches) - 1}" if launches else "none: no launch could be read"
        raise ProblemError("the package has no launch of this number", value=number, allowed=allowed)
    return launches[number]


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
    """Launches of constant folding, optionally of one kernel or constant. Numbered separately."""
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


def kernel_fact(view: PackageView, name: str) -> KernelFact:
    """A kernel by its name in the wrapper or on the device. Raises `ProblemError` if unknown."""
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
        source=kernel.source,
    )


def _kernel(view: PackageView, name: str) -> Kernel:
    kernels = view.wrapper.kernels
    found = kernels.get(name) or next((k for k in kernels.values() if k.symbol == name), None)
    if found is None:
        known = ", ".join(sorted(kernels)[:_LISTED])
        raise ProblemError("the package has no kernel of this name", value=name, allowed=known)
    return found


def no_holder(view: PackageView) -> str:
    """Explains why no kernel has the check that an error names."""
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
    """Whether `name` is a compiled kernel, not a shim or custom operator."""
    return name in view.wrapper.kernels or any(k.symbol == name for k in view.wrapper.kernels.values())


def launches_of_kernel(view: PackageView, name: str) -> list[int]:
    """Launches of a kernel, a shim (`aoti_torch_cuda_mm_out`) or a custom operator, by name."""
    if name in view.launches_of:
        return view.launches_of[name]
    target = view.package.proxy_target
    numbers = [n.index for n in view.wrapper.launches if name and target(n.proxy_index) == name]
    return numbers or view.launches_of.get(_kernel(view, name).name, [])


def launches_at_line(view: PackageView, location: str) -> list[int]:
    """Launches of the model line `file.py:LINE`. Raises `ProblemError` if none is known."""
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
    """Every launch that may have printed an index assertion. Raises `ProblemError` for other text.

    Empty if no kernel of the package has that check.
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
