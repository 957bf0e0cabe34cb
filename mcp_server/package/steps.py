"""The parts of a dataflow: steps, what they read and write, slices, and when one access meets another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mcp_server.package.buffers import Buffer
from mcp_server.package.digits import whole_number
from mcp_server.package.launches import Argument, Launch, Transfer
from mcp_server.package.statements import Block

SOURCES = frozenset({"input", "constant"})


@dataclass(frozen=True, slots=True)
class Use:
    """A variable that a step reads or writes.

    `whole`: a write after which the storage holds what the step made, of its inputs and maybe of the old
    content. `pure`: a read by a parameter that is only read. `extent` is the first and past-the-end
    element, when static.
    """

    name: str
    storage: int
    whole: bool = False
    extent: tuple[int, int] | None = None
    pure: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A launch or a transfer with what it reads and writes. `path` holds the branches and loops around it."""

    order: int
    node: Launch | Transfer
    reads: tuple[Use, ...]
    writes: tuple[Use, ...]
    path: tuple[Block, ...]

    @property
    def launch(self) -> int | None:
        return self.node.index if isinstance(self.node, Launch) else None


@dataclass(frozen=True, slots=True)
class Edge:
    """`reader` uses what `writer` left in `name`. `writer` is None for an input, a constant or unset
    memory.
    """

    writer: Step | None
    reader: Step
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of the dataflow: steps in order, the edges between them, and where it starts or ends.

    `unset` names buffers read before anything wrote them. `outputs` are output indices reached (forward
    only).
    """

    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    inputs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def launches(self) -> tuple[int, ...]:
        return tuple(step.launch for step in self.steps if step.launch is not None)


def needs_old(argument: Argument) -> bool:
    """Whether the old content of a tensor counts: it is read, or some of it survives the write."""
    return argument.role != "written" or argument.partial


def touches(step: Step, use: Use) -> bool:
    """Whether a step writes memory that `use` looks at; disjoint static extents do not meet."""
    for written in step.writes:
        if written.storage != use.storage:
            continue
        if written.extent is None or use.extent is None:
            return True
        if written.extent[0] < use.extent[1] and use.extent[0] < written.extent[1]:
            return True
    return False


def certain(step: Step, use: Use, path: tuple[Block, ...]) -> bool:
    """Whether a step has certainly replaced all that `use` looks at."""
    if step.path != path[: len(step.path)]:
        return False
    return any(w.storage == use.storage and w.whole for w in step.writes)


def covers(buffer: Buffer) -> bool:
    """Whether a write through this variable covers its storage: it owns it, or took it over for reuse."""
    return buffer.kind not in ("view", "alias") or (buffer.reused and buffer.offset in ("0", "0L"))


def extent_of(
    sizes: tuple[str, ...] | None, strides: tuple[str, ...] | None, offset: str | None
) -> tuple[int, int] | None:
    """First and past-the-end element of a static view; None when any part is symbolic."""
    numbers = [static(text) for text in (*(sizes or ("?",)), *(strides or ()), offset or "?")]
    if None in numbers or sizes is None or strides is None or len(sizes) != len(strides):
        return None
    values = [n for n in numbers if n is not None]
    count, start = len(sizes), values[-1]
    reach = sum((size - 1) * stride for size, stride in zip(values[:count], values[count:-1], strict=True))
    return start, start + reach + 1


def static(text: str) -> int | None:
    return whole_number(text.rstrip("L"))


def innermost_loop(path: tuple[Block, ...]) -> Block | None:
    """The innermost loop of a path."""
    return next((block for block in reversed(path) if block.kind == "loop"), None)


def distinct(uses: Iterable[Use]) -> tuple[Use, ...]:
    return tuple(dict.fromkeys(uses))
