"""Answers queries about launches, kernels, tensors, symbols and assertions of a package.

Nothing runs. Lists of launch numbers are cut to their first 100 (backward slices: the last 100). The counts
beside them include all launches.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from mcp_server.errors import ProblemError
from mcp_server.package.assertion import Assertion, explain, propose
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Buffer, Launch
from mcp_server.package.symbols import plain
from mcp_server.package.terms.sizes import find_asserts
from mcp_server.package.view import PackageView

Fact = dict[str, Any]
"""One launch, kernel, tensor, size, input, constant or assertion, as `kind_of_fact` says.

The fields are those of the record in `package/`, and related facts of the package. Expressions have no
suffixes, tensors have readable names. A field without a value is left out.
"""


def _fact(kind: str, record: object, names: str, **more: object) -> Fact:
    """A fact with the fields `names` of a record, and `more`."""
    fields = {name: getattr(record, name) for name in names.split()} | more
    return {"kind_of_fact": kind} | {name: each for name, each in fields.items() if each not in (None, "")}


_LISTED = 12
_NAMES = 100
FOLDING = "constant folding, once before the first call (_const_run_impl)"


def launch_facts(view: PackageView, numbers: Iterable[int], *, brief: bool = False) -> list[Fact]:
    """Launches by number. Raises `ProblemError` for an unknown number."""
    return [_launch_fact(view, view.known_launch(number), brief) for number in numbers]


def _launch_fact(view: PackageView, launch: Launch, brief: bool) -> Fact:
    provenance = view.provenance(launch)
    shown = [a for a in launch.arguments if a.is_tensor or not (brief or a.kind == "context")]
    within = [block.header for block in launch.context if block.kind != "scope"]
    reads_from = []
    for name in launch.reads if not brief else ():
        if writers := view.flow_of(launch).writing_launches(name, launch.index):
            reads_from.append(f"{name} was last written by launch {', '.join(map(str, writers))}")
    return _fact(
        "launch",
        launch,
        "index kernel kind line checked",
        arguments=[_argument(view, a) for a in shown],
        reads_from=reads_from,
        grid=[] if brief else [plain(part) for part in view.wrapper.grid(launch)],
        within=within if launch.function == "run_impl" else [FOLDING, *within],
        nodes=list((provenance.post_grad or launch.sources)[:_LISTED]),
        operators=list(launch.atens[:_LISTED]),
        model=list(provenance.locations[:_LISTED]),
        folded_frames=provenance.folded or None,
        model_source=provenance.source,
    )


def folding_facts(view: PackageView, *, kernel: str | None = None, constant: str | None = None) -> list[Fact]:
    """Launches of constant folding (of one kernel or constant), numbered apart from the others."""
    launches = view.folding_launches(constant)
    return [_launch_fact(view, n, False) for n in launches if kernel in (None, n.kernel, n.symbol)]


def _argument(view: PackageView, argument: Argument) -> str:
    name = argument.name or f"argument {argument.position}"
    if not argument.is_tensor:
        return f"{name}: {plain(argument.expression)}"
    shape = f" as [{', '.join(map(plain, argument.view.sizes))}]" if argument.view else ""
    return f"{name}: {view.label(argument.target)}{shape} [{argument.role}]"


def kernel_fact(view: PackageView, name: str, most: int | None = None) -> Fact:
    """A kernel by its name in the wrapper or on the device, with a limited part of its source.

    Raise `ProblemError` if unknown.
    """
    kernel = _kernel(view, name)
    return _fact(
        "kernel",
        kernel,
        "name kind symbol cubin num_warps shared_bytes",
        launches=view.wrapper.launches_of.get(kernel.name, []),
        parameters=[f"{p.name}: {p.type} [{p.role}]" for p in kernel.parameters],
        location=f"{kernel.file}:{kernel.first_line or kernel.line}",
        asserts=[f"line {a.line}: {a.text}" for a in find_asserts(kernel.source)],
        grid=list(kernel.grid),
        source=kernel.source[:most],
    )


def _kernel(view: PackageView, name: str) -> Kernel:
    found = view.wrapper.kernel_named(name)
    if found is None:
        known = ", ".join(sorted(view.wrapper.kernels)[:_LISTED])
        raise ProblemError("the package has no kernel of this name", value=name, allowed=known)
    return found


def no_holder(view: PackageView) -> str:
    """Say why no kernel has the check that an error names."""
    if missing := sourceless(view):
        return f"no kernel whose source is here holds that check; {missing}"
    return "no kernel of this package holds that check: is it the package that failed?"


def ambiguity(facts: Sequence[Fact]) -> str:
    """A sentence if an assertion has several candidates; empty otherwise."""
    if len(facts) < 2:
        return ""
    return f"{len(facts)} places fit; the generated file and line, or a trace, tell them apart"


def sourceless(view: PackageView) -> str:
    """A sentence if the package lacks sources of Triton kernels; empty otherwise."""
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


def assertion_facts(view: PackageView, assertion: Assertion | None, text: str) -> list[Fact]:
    """Return every launch that may have printed an assertion. Raise `ProblemError` if `text` holds none.

    Empty if no kernel of the package has the check.
    """
    if assertion is None:
        example = "index out of bounds: 0 <= tmp6 < ks0"
        raise ProblemError("the text holds no index assertion", value=text[:200], allowed=example)
    return [
        _fact(
            "assertion",
            candidate,
            "location lowest",
            launch=candidate.launch.index,
            kernel=candidate.kernel.name,
            condition=candidate.check.text,
            bound=candidate.bound.describe() if candidate.bound else "none",
            facts=list(explain(candidate)),
            index_from=[source.label for source in candidate.sources],
            model=list(candidate.provenance.locations),
            model_source=candidate.provenance.source,
            fix=propose(candidate),
        )
        for candidate in view.tracer.trace(assertion)
    ]


def buffer_fact(view: PackageView, name: str) -> Fact:
    """A tensor variable of the wrapper. Raises `ProblemError` for an unknown name."""
    buffer = view.wrapper.buffers.get(name)
    if buffer is None:
        known = ", ".join(list(view.wrapper.buffers)[:_LISTED])
        raise ProblemError("the wrapper has no tensor of this name", value=name, allowed=f"{known}, …")
    # Follow the value that the last reader of this name gets or, if a later launch writes, the new value.
    reads, writes = view.readers_of_name.get(name, []), view.writers_of_name.get(name, [])
    last = reads[-1] if reads else None
    if writes and (last is None or last <= writes[-1]):
        last = writes[-1] + 1 if writes[-1] + 1 < len(view.wrapper.launches) else None
    behind = view.flow.backward(name, last)
    return _fact(
        "buffer",
        buffer,
        "name kind line dtype device base",
        shape=_listed(buffer.sizes),
        strides=_listed(buffer.strides),
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


def input_fact(view: PackageView, wanted: str) -> Fact:
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
    return _fact(
        "input",
        compiled,
        "index name path dtype shape",
        ranges=ranges,
        **_users(view, view.wrapper.buffers.get(compiled.name)),
        reaches=list(ahead.launches[:_NAMES]),
        reaches_launches=len(ahead.launches),
        reaches_outputs=list(ahead.outputs),
    )


def constant_fact(view: PackageView, wanted: str) -> Fact:
    """A constant by its name in the model or wrapper. Raises `ProblemError` if unknown."""
    constants = view.package.constants
    constant = next((c for c in constants if wanted in (c.fqn, c.name)), None)
    if constant is None:
        known = ", ".join(c.fqn for c in constants[:_LISTED])
        raise ProblemError("the package has no such constant", value=wanted, allowed=known or "none")
    users = _users(view, view.wrapper.buffers.get(constant.name))
    return _fact("constant", constant, "index name fqn dtype kind", shape=list(constant.shape), **users)


def _users(view: PackageView, buffer: Buffer | None) -> dict[str, list[int]]:
    """The launches that read and write the memory of a tensor."""
    if buffer is None:
        return {"read_by": [], "written_by": []}
    read, written = view.readers.get(buffer.storage, []), view.writers.get(buffer.storage, [])
    return {"read_by": read[:_NAMES], "written_by": written[:_NAMES]}
