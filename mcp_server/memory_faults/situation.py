"""Everything known about one fault: package, access, launch, recorded values. Input of the blame rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from mcp_server.logs.journal import Journal, JournalArgument, JournalLaunch, TensorFacts
from mcp_server.memory_faults import kernel_lines
from mcp_server.memory_faults.access import Access
from mcp_server.memory_faults.kernel_lines import KernelUse, LineAccess
from mcp_server.package.assertion import generated_line
from mcp_server.package.kernel_code import find_asserts, indexed_by, read_condition
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.mismatch import GivenTensor
from mcp_server.package.statements import evaluate
from mcp_server.package.symbols import plain
from mcp_server.package.view import PackageView


@dataclass(frozen=True)
class ValueRange:
    """Least and greatest element of an integer tensor at a launch."""

    minimum: int
    maximum: int


@dataclass(frozen=True)
class Evidence:
    """What a run recorded.

    `ranges` is keyed by (launch number, variable). `inputs` are the tensors of the call. `sites` maps offsets
    of launching calls in the package's library to launch numbers. `synchronous`: each launch was waited for.
    """

    journal: Journal | None = None
    synchronous: bool = False
    ranges: Mapping[tuple[int, str], ValueRange] = field(default_factory=dict)
    inputs: tuple[GivenTensor, ...] = ()
    sites: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Situation:
    """A fault at one launch, with derived facts. `seen` is the launch's journal entry."""

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
        """Recorded arguments by parameter name."""
        return {a.parameter or a.name: a for a in self.seen.arguments} if self.seen else {}

    @cached_property
    def by_parameter(self) -> dict[str, Argument]:
        return {a.name: a for a in self.launch.arguments if a.name}

    def tensor(self, parameter: str) -> TensorFacts | None:
        """The tensor passed for a parameter; None without a journal."""
        found = self.arguments.get(parameter)
        return found.tensor if found else None

    def variable(self, parameter: str) -> str:
        argument = self.by_parameter.get(parameter)
        return (argument.target or "") if argument else ""

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Values of size symbols in this call, derived from the tensors of its launches."""
        return symbol_values(self.view, self.evidence.journal, self.seen)

    @cached_property
    def scalars(self) -> dict[str, int]:
        """Integer arguments by parameter: from the journal, else evaluated from the symbols."""
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
        """Candidate source accesses: on the reported line and of the reported direction."""
        if self.use is None:
            return ()
        if self.access.condition:
            found = self._asserted_accesses()
        elif self.access.line is None:
            triton = self.use.kernel.kind != "cpp"
            found = tuple(access for access, _, _ in kernel_lines.every_access(self.use)) if triton else ()
        else:
            found = self._accesses_on(self.use, self.access.line)
        fitting = [a for a in found if direction_matches(a.direction, self.access.direction)]
        return tuple(fitting or found)

    def _asserted_accesses(self) -> tuple[LineAccess, ...]:
        """The accesses whose index the failed assertion checks."""
        use, condition = self.use, read_condition(self.access.condition)
        if use is None or condition is None:
            return ()
        found: dict[tuple[int, str], LineAccess] = {}
        for check in find_asserts(use.kernel.source):
            if plain(check.text) != self.access.condition:
                continue
            for load in indexed_by(use.kernel.source, check.variable, check.line, use.tensors):
                for access in self._accesses_on(use, generated_line(use.kernel, load.line)):
                    found[access.line, access.code] = access
        return tuple(found.values())

    def _accesses_on(self, use: KernelUse, line: int) -> tuple[LineAccess, ...]:
        if use.kernel.kind == "cpp":
            return kernel_lines.cpp_accesses_on(use, line)
        return kernel_lines.triton_accesses_on(use, line)

    @cached_property
    def indirect(self) -> LineAccess | None:
        """The access if its address was itself loaded from memory, not computed from an argument."""
        loaded = [a for a in self.accesses if a.loads and not a.parameters]
        return loaded[0] if loaded and len(loaded) == len(self.accesses) else None

    def declared_shape(self, variable: str) -> tuple[int, ...] | None:
        """The sizes that the wrapper declares for a variable, evaluated for this call."""
        buffer = self.view.wrapper.buffers.get(variable)
        if buffer is None or buffer.sizes is None:
            return None
        sizes = [evaluate(size, self.symbols) for size in buffer.sizes]
        return tuple(int(s) for s in sizes if s is not None) if None not in sizes else None


def direction_matches(direction: str, reported: str) -> bool:
    """Whether a source access can be the reported `read` or `write`; an atomic counts as both."""
    return not reported or direction == reported or "atomic" in (direction, reported)


def symbol_values(view: PackageView, journal: Journal | None, seen: JournalLaunch | None) -> dict[str, int]:
    """Values of symbols, from tensors recorded in the same call, then of computed symbols."""
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
