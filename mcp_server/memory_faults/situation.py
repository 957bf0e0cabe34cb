"""Everything known about one fault before it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from mcp_server.logs.journal import Journal, JournalArgument, JournalLaunch, TensorFacts
from mcp_server.memory_faults import kernel_lines
from mcp_server.memory_faults.access import Access
from mcp_server.memory_faults.kernel_lines import KernelUse, LineAccess
from mcp_server.package.arithmetic import evaluate
from mcp_server.package.assertion import generated_line
from mcp_server.package.kernel_code import find_asserts, indexed_by, read_condition
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.mismatch import GivenTensor
from mcp_server.package.symbols import plain
from mcp_server.package.view import PackageView


@dataclass(frozen=True)
class ValueRange:
    """Least and greatest element of an integer tensor, as a launch found it."""

    minimum: int
    maximum: int


@dataclass(frozen=True)
class Evidence:
    """What a run left. `ranges` are by (launch, variable); `sites` maps offsets of launching calls in the
    package's library to launch numbers."""

    journal: Journal | None = None
    synchronous: bool = False
    ranges: Mapping[tuple[int, str], ValueRange] = field(default_factory=dict)
    given: tuple[GivenTensor, ...] = ()
    sites: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Situation:
    """A fault at a launch."""

    view: PackageView
    access: Access
    launch: Launch
    evidence: Evidence
    seen: JournalLaunch | None = None

    @cached_property
    def kernel(self) -> Kernel | None:
        return self.view.wrapper.kernels.get(self.launch.kernel)

    @cached_property
    def arguments(self) -> dict[str, JournalArgument]:
        """By parameter, as the launch was given them."""
        return {a.parameter or a.name: a for a in self.seen.arguments} if self.seen else {}

    @cached_property
    def by_parameter(self) -> dict[str, Argument]:
        return {a.name: a for a in self.launch.arguments if a.name}

    def tensor(self, parameter: str) -> TensorFacts | None:
        """The tensor that a parameter was given; None when no journal tells."""
        found = self.arguments.get(parameter)
        return found.tensor if found else None

    def variable(self, parameter: str) -> str:
        argument = self.by_parameter.get(parameter)
        return (argument.target or "") if argument else ""

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Sizes of this call, as far as the tensors of its launches tell them."""
        return symbol_values(self.view, self.evidence.journal, self.seen)

    @cached_property
    def scalars(self) -> dict[str, int]:
        """Integer arguments of the launch by parameter: from the journal, else worked out."""
        found = {n: int(a.value) for n, a in self.arguments.items() if isinstance(a.value, int)}
        for argument in self.launch.arguments:
            if argument.name and not argument.is_tensor and argument.name not in found:
                value = evaluate(argument.expression, self.symbols)
                if value is not None and value.denominator == 1:
                    found[argument.name] = int(value)
        return found

    @cached_property
    def use(self) -> KernelUse | None:
        if self.kernel is None:
            return None
        constants = kernel_lines.constants_of(self.kernel.source)
        tensors = frozenset(a.name for a in self.launch.tensors if a.name)
        return KernelUse(self.kernel, tensors, frozenset(self.scalars), {**constants, **self.scalars})

    @cached_property
    def accesses(self) -> tuple[LineAccess, ...]:
        """The accesses that may be the one: on the line and of the direction that the tool told."""
        if self.use is None:
            return ()
        if self.access.condition:
            found = self._checked()
        elif self.access.line is None:
            found = self._every()
        else:
            found = self._on(self.use, self.access.line)
        fitting = [a for a in found if fits(a.direction, self.access.direction)]
        return tuple(fitting or found)

    def _checked(self) -> tuple[LineAccess, ...]:
        """The accesses whose index the failed assertion checks."""
        use, condition = self.use, read_condition(self.access.condition)
        if use is None or condition is None:
            return ()
        found: dict[tuple[int, str], LineAccess] = {}
        for check in find_asserts(use.kernel.source):
            if plain(check.text) != self.access.condition:
                continue
            for load in indexed_by(use.kernel.source, check.variable, check.line, use.tensors):
                for access in self._on(use, generated_line(use.kernel, load.line)):
                    found[access.line, access.code] = access
        return tuple(found.values())

    def _on(self, use: KernelUse, line: int) -> tuple[LineAccess, ...]:
        if use.kernel.kind == "cpp":
            return kernel_lines.cpp_accesses_on(use, line)
        return kernel_lines.triton_accesses_on(use, line)

    def _every(self) -> tuple[LineAccess, ...]:
        if self.use is None or self.use.kernel.kind == "cpp":
            return ()
        return tuple(access for access, _, _ in kernel_lines.every_access(self.use))

    @cached_property
    def chased(self) -> LineAccess | None:
        """The access when its address was itself loaded from memory, and starts at no argument."""
        loaded = [a for a in self.accesses if a.loads and not a.parameters]
        return loaded[0] if loaded and len(loaded) == len(self.accesses) else None

    def declared_shape(self, variable: str) -> tuple[int, ...] | None:
        """The sizes that the wrapper states for a variable, in numbers of this call."""
        buffer = self.view.wrapper.buffers.get(variable)
        if buffer is None or buffer.sizes is None:
            return None
        sizes = [evaluate(size, self.symbols) for size in buffer.sizes]
        return tuple(int(s) for s in sizes if s is not None) if None not in sizes else None


def fits(direction: str, told: str) -> bool:
    """Whether an access of the source can be the one that a tool calls `read`, `write` or `atomic`."""
    return not told or direction == told or "atomic" in (direction, told)


def symbol_values(view: PackageView, journal: Journal | None, seen: JournalLaunch | None) -> dict[str, int]:
    """Symbols by the tensors of the same call; computed ones follow."""
    if journal is None or seen is None:
        return {}
    launches = [launch for launch in journal.launches if launch.run == seen.run]
    tensors = {a.name: a.tensor for launch in launches for a in launch.arguments if a.tensor}
    found: dict[str, int] = {}
    for symbol in view.wrapper.symbols.values():
        value: Fraction | int | None = None
        tensor = tensors.get(symbol.tensor or "")
        if tensor is not None and symbol.dim is not None and symbol.dim < len(tensor.shape):
            value = (tensor.shape if symbol.kind == "size" else tensor.stride)[symbol.dim]
        elif symbol.kind == "computed":
            value = evaluate(symbol.expression, found)
        if value is not None:
            found[symbol.name] = int(value)
    return found
