"""Traces an `index out of bounds` assertion: kernel, launch, what the bound is, where the index came from.

Where a text fits several asserts or launches, each is a candidate; nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mcp_server.package.bounds import Bound, plain, resolve_bound
from mcp_server.package.constants import CompiledConstant
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.index_form import (
    Allowed,
    IndexForm,
    allowed_elements,
    position_limit,
    read_form,
)
from mcp_server.package.kernel_code import (
    IndexAssert,
    Load,
    Trace,
    find_asserts,
    indexed_by,
    read_condition,
    trace_value,
    unwrapped,
)
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.package.provenance import Provenance, read_provenance
from mcp_server.package.relevance import indexing_first
from mcp_server.package.signature import CompiledInput
from mcp_server.package.wrapper import Wrapper

_TEXT = re.compile(
    r"(?:index out of bounds: )?((?:(?:-|(?<!\w))\w+ <= \w+(?: < [^`'\"\n]+?)?)|(?:\btmp\w* < [^`'\"\n]+?))"
    r"(?=[`'\"\n]| failed|$)"
)
_DEVICE = re.compile(r"(?<![^\s:`])(?P<file>[^\s:`]*\.py):(?P<line>\d{1,9}): ")
_HOST = re.compile(r"Exception raised from (?P<kernel>\w+) at (?P<file>\S+?\.cpp):(?P<line>\d{1,9})\b")

FindKernels = Callable[[str], Collection[str]]


@dataclass(frozen=True, slots=True)
class Assertion:
    """What the error text says. `line` counts in the generated file; `kernel` is known in the C++ form
    only.
    """

    condition: str
    variable: str
    lower: str | None
    upper: str | None
    file: str | None = None
    line: int | None = None
    kernel: str | None = None


@dataclass(frozen=True, slots=True)
class IndexSource:
    """A tensor that the index was loaded from.

    `tensor` is the variable in the wrapper. `producers` are the launches that last wrote it, maybe the
    asserting one itself (none: it is an input or a constant as given). `inputs` are all model inputs that its
    values depend on, by label. `allowed` is what its elements may be, None where that cannot be told.
    """

    load: Load
    tensor: str
    kind: str
    label: str
    producers: tuple[int, ...]
    inputs: tuple[str, ...]
    allowed: Allowed | None = None

    @property
    def direct(self) -> bool:
        """Whether this is an input as given, not computed by any launch."""
        return self.kind == "input" and not self.producers


@dataclass(frozen=True, slots=True)
class Candidate:
    """One launch at which the assertion may have failed.

    `location` is `wrapper.cpp:LINE` for Triton (where the source is embedded) and `kernel.cpp:LINE` for
    C++. `indexed` are the tensors that the checked index addresses. `form` is how the kernel computes the
    index from loaded elements, None where it does something else to them. `position` is set for an index that
    comes from no data: it runs from 0 to below that size. `provenance` has the lines that index first.
    """

    launch: Launch
    kernel: Kernel
    check: IndexAssert
    location: str
    bound: Bound | None
    trace: Trace
    sources: tuple[IndexSource, ...]
    indexed: tuple[str, ...]
    provenance: Provenance
    form: IndexForm | None = None
    position: Bound | None = None

    @property
    def lowest(self) -> str:
        """The least index that passes: below zero when the kernel wraps negative indices first."""
        if not self.trace.wraps or self.bound is None:
            return self.check.lower or "0"
        value = self.bound.value
        return str(-value) if value is not None else f"-({self.bound.expression})"


@dataclass(frozen=True)
class Tracer:
    """What tracing needs to know of a package."""

    wrapper: Wrapper
    inputs: Sequence[CompiledInput] = ()
    constants: Sequence[CompiledConstant] = ()
    information: Mapping[str, object] = field(default_factory=dict)
    kernels_of_file: FindKernels | None = None
    flow: Dataflow | None = None

    def trace(self, assertion: Assertion) -> tuple[Candidate, ...]:
        """Every launch that the assertion fits, in execution order; empty when no kernel holds it."""
        found = [
            self._candidate(self.wrapper.launches[number], kernel, check)
            for kernel, check in self._holders(assertion)
            for number in self._launched.get(kernel.name, [])
        ]
        return tuple(sorted(found, key=lambda candidate: (candidate.launch.index, candidate.check.line)))

    @cached_property
    def _flow(self) -> Dataflow:
        return self.flow or Dataflow(self.wrapper.run)

    @cached_property
    def _launched(self) -> dict[str, list[int]]:
        """Launch numbers of each kernel."""
        found: dict[str, list[int]] = {}
        for launch in self.wrapper.launches:
            found.setdefault(launch.kernel, []).append(launch.index)
        return found

    @cached_property
    def _checks(self) -> dict[str, list[tuple[Kernel, IndexAssert]]]:
        """Every index assert of the package, by its condition."""
        found: dict[str, list[tuple[Kernel, IndexAssert]]] = {}
        for kernel in self.wrapper.kernels.values():
            for check in find_asserts(kernel.source):
                found.setdefault(plain(check.text), []).append((kernel, check))
        return found

    def _holders(self, assertion: Assertion) -> list[tuple[Kernel, IndexAssert]]:
        """Kernels with that very check, narrowed by kernel, line and file as far as something is left."""
        found = self._checks.get(assertion.condition, [])
        named = [(k, c) for k, c in found if assertion.kernel in (None, k.name, k.symbol)]
        placed = [(k, c) for k, c in named or found if assertion.line in (None, generated_line(k, c.line))]
        return self._in_file(placed or named or found, assertion)

    def _in_file(
        self, found: list[tuple[Kernel, IndexAssert]], assertion: Assertion
    ) -> list[tuple[Kernel, IndexAssert]]:
        if len(found) < 2 or not assertion.file or self.kernels_of_file is None:
            return found
        names = self.kernels_of_file(assertion.file)
        return [(k, c) for k, c in found if k.name in names] or found

    def _candidate(self, launch: Launch, kernel: Kernel, check: IndexAssert) -> Candidate:
        tensors = {a.name for a in launch.tensors}
        scalars = {a.name for a in launch.arguments if a.name and not a.is_tensor}
        place = (kernel.source, check.variable, check.line)
        trace = trace_value(*place, tensors, scalars)
        form = read_form(*place, tensors, scalars)
        by_name = {a.name: a for a in launch.arguments}
        limit = None if trace.loads else position_limit(*place)
        indexed = dict.fromkeys(by_name[a.parameter].target for a in indexed_by(*place, tensors))
        fqns = [constant.fqn for constant in self.constants if constant.name in indexed and constant.fqn]
        return Candidate(
            launch,
            kernel,
            check,
            source_location(kernel, check.line),
            self._bound(check.upper, launch),
            trace,
            tuple(self._checked(load, launch, check, form) for load in trace.loads),
            tuple(dict.fromkeys(self.label(name) for name in indexed)),
            indexing_first(read_provenance(launch, self.information), fqns),
            form,
            self._bound(limit, launch),
        )

    def _bound(self, text: str | None, launch: Launch) -> Bound | None:
        return resolve_bound(text, launch, self.wrapper.symbols, self.inputs) if text else None

    def source(self, load: Load, launch: Launch) -> IndexSource:
        """Where what a launch loads comes from."""
        argument = next(argument for argument in launch.arguments if argument.name == load.parameter)
        name = argument.target or ""
        made_here = argument.role == "written"
        behind = (
            self._flow.backward_from(launch.index) if made_here else self._flow.backward(name, launch.index)
        )
        producers = (launch.index,) if made_here else self._last_writers(name, launch)
        kind = "input" if not producers and len(behind.inputs) == 1 else argument.kind
        inputs = tuple(self.label(n) for n in behind.inputs)
        label = inputs[0] if kind == "input" and inputs else self.label(name)
        return IndexSource(load, name, kind, label, producers, inputs)

    def _checked(self, load: Load, launch: Launch, check: IndexAssert, form: IndexForm | None) -> IndexSource:
        """The same with what its elements may be for the check to pass."""
        allowed = allowed_elements(form, load, check.lower, check.upper) if form else None
        return replace(self.source(load, launch), allowed=allowed)

    def _last_writers(self, name: str, launch: Launch) -> tuple[int, ...]:
        return tuple(s.launch for s in self._flow.last_writers(name, launch.index) if s.launch is not None)

    def label(self, name: str | None) -> str:
        """A tensor of the wrapper in words: the caller's input, the model's constant, or the buffer."""
        for compiled in self.inputs:
            if compiled.name == name:
                return compiled.label
        for constant in self.constants:
            if constant.name == name:
                return f"constant {constant.fqn} of shape {list(constant.shape)}"
        return name or "?"


def read_assertion(
    text: str, file: str | None = None, line: int | None = None, kernel: str | None = None
) -> Assertion | None:
    """What an error text, or the bare condition, says; None when it holds no index assertion."""
    text = unwrapped(text)
    match = _TEXT.search(text.strip())
    condition = read_condition(plain(match[1].strip())) if match else None
    if match is None or condition is None:
        return None
    device, host = _DEVICE.search(text), _HOST.search(text)
    place = host or device
    lower, variable, upper = condition
    return Assertion(
        plain(match[1].strip()),
        variable,
        lower,
        upper,
        file or (place["file"] if place else None),
        line or (int(place["line"]) if place else None),
        kernel or (host["kernel"] if host else None),
    )


def generated_line(kernel: Kernel, line: int) -> int:
    """The line that an error names: in the embedded text for Triton, in kernel.cpp for C++ (torch
    2.8-2.15).
    """
    return line if kernel.kind != "cpp" else kernel.first_line + line - 1


def source_location(kernel: Kernel, line: int) -> str:
    """Where a line of a kernel's source stands in the package."""
    file = "kernel.cpp" if kernel.kind == "cpp" else "wrapper.cpp"
    return f"{file}:{kernel.first_line + line - 1}"
