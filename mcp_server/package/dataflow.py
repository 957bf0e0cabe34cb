"""Dataflow over a wrapper's launches: last writers, backward and forward slices.

The analysis tracks storages, not names, since views, moves and reused buffers share memory. A write replaces
the earlier value only if it covers the storage and certainly runs before the reader (all branches and loops
around the write also contain the reader). Otherwise, values of earlier writers still reach the reader.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mcp_server.package.calls import Body
from mcp_server.package.launches import Argument, Buffer, Launch, Transfer, View, shifted, whole_number
from mcp_server.package.symbols import origins
from mcp_server.package.terms.blocks import Block
from mcp_server.package.terms.sizes import reached
from mcp_server.package.wrapper import grouped

SOURCES = frozenset({"input", "constant"})


@dataclass(frozen=True, slots=True)
class Use:
    """A variable that a step reads or writes.

    `whole`: a write that replaces the whole storage (the new values may depend on the old). `pure`: a read
    through a parameter of role `read`. `extent`: [first, past-the-end) in elements, None if symbolic.
    """

    name: str
    storage: int
    whole: bool = False
    extent: tuple[int, int] | None = None
    pure: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A launch or transfer with its reads and writes. `path` lists the enclosing branches and loops."""

    order: int
    node: Launch | Transfer
    reads: tuple[Use, ...]
    writes: tuple[Use, ...]
    path: tuple[Block, ...]

    @property
    def launch(self) -> int | None:
        return self.node.index if isinstance(self.node, Launch) else None


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of the dataflow: steps in order, and the variables where it starts or ends.

    `unset` names buffers read before any write. `outputs` are the output indices reached (forward only).
    """

    steps: tuple[Step, ...]
    inputs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def launches(self) -> tuple[int, ...]:
        return tuple(step.launch for step in self.steps if step.launch is not None)


def _touches(step: Step, use: Use) -> bool:
    """Whether a step writes memory that `use` accesses. Disjoint static extents do not overlap."""
    return any(
        written.extent is None
        or use.extent is None
        or (written.extent[0] < use.extent[1] and use.extent[0] < written.extent[1])
        for written in step.writes
        if written.storage == use.storage
    )


def _certain(step: Step, use: Use, path: tuple[Block, ...]) -> bool:
    """Whether a step has certainly replaced everything that `use` accesses."""
    replaces = any(w.storage == use.storage and w.whole for w in step.writes)
    return replaces and step.path == path[: len(step.path)]


def _extent(shape: Buffer | View, offset: str | None) -> tuple[int, int] | None:
    """First and past-the-end element of a static view. None if any part is symbolic."""
    sizes, strides = shape.sizes, shape.strides
    if sizes is None or strides is None or offset is None or len(sizes) != len(strides):
        return None
    numbers = [n for text in (*sizes, *strides, offset) if (n := whole_number(text.rstrip("L"))) is not None]
    if len(numbers) < 2 * len(sizes) + 1:
        return None
    *parts, start = numbers
    first, end = reached(parts[: len(sizes)], parts[len(sizes) :])
    return start + first, start + end


class Dataflow:
    """The dataflow of one function body. Building it takes linear time."""

    def __init__(self, body: Body) -> None:
        self.body = body
        nodes: list[Launch | Transfer] = sorted(
            [*body.launches, *body.transfers], key=lambda node: node.start
        )
        self.steps = tuple(self._step(order, node) for order, node in enumerate(nodes))
        self.launch_steps = [(s.launch, s) for s in self.steps if s.launch is not None]
        # The numbers of the steps that write each storage, ascending.
        self._writers = grouped((use.storage, step.order) for step in self.steps for use in step.writes)
        self.order_of = {launch: step.order for launch, step in self.launch_steps}

    def last_writers(self, name: str, launch: int | None = None) -> tuple[Step, ...]:
        """List the steps whose values `name` may have when `launch` starts (default: the end), newest first.

        Empty for unmodified inputs and constants, and for unset memory.
        """
        buffer = self.body.buffers.get(name)
        if buffer is None:
            return ()
        order = len(self.steps) if launch is None else self.order_of[launch]
        path = self.steps[order].path if order < len(self.steps) else ()
        return tuple(self._reaching(self._whole_use(buffer), order, path))

    def writing_launches(self, name: str, launch: int | None = None) -> list[int]:
        """List the launches among `last_writers`."""
        return [step.launch for step in self.last_writers(name, launch) if step.launch is not None]

    def backward(self, name: str, launch: int | None = None) -> Slice:
        """Everything from which `name` was computed before `launch` (default: the end)."""
        first = self.last_writers(name, launch)
        return self._collect(first, self.body.buffers.get(name) if not first else None)

    def edges(self) -> Iterator[tuple[Step, Step, str]]:
        """Yield (writer, reader, variable) where the reader may get values of the writer."""
        for reader in self.steps:
            for use in reader.reads:
                for writer in self._reaching(use, reader.order, reader.path):
                    yield writer, reader, use.name

    def backward_from(self, launch: int) -> Slice:
        """Everything that a launch depends on, including the launch itself."""
        return self._collect((self.steps[self.order_of[launch]],))

    def forward(self, names: Iterable[str], launch: int = -1) -> Slice:
        """Everything that the values of `names` after `launch` can reach; -1 is the start."""
        start = self.order_of[launch] + 1 if launch >= 0 else 0
        # Storages that contain a value computed from `names`.
        tainted = {each.storage for name in names if (each := self.body.buffers.get(name))}
        steps: dict[int, Step] = {}
        for step in self._steps_from(start):
            touched = any(use.storage in tainted for use in step.reads)
            if touched:
                steps[step.order] = step
            for use in step.writes:
                if touched:
                    tainted.add(use.storage)
                elif use.whole and not step.path:
                    tainted.discard(use.storage)
        reached = tuple(
            index
            for index, name in sorted(self.body.outputs.items())
            if (b := self.body.buffers.get(name)) and b.storage in tainted
        )
        ordered = tuple(steps[order] for order in sorted(steps))
        return Slice(ordered, outputs=reached)

    def _steps_from(self, start: int) -> Iterator[Step]:
        """Yield the steps from `start` on. Repeat loop bodies: values flow into the next iteration."""
        at = start
        while at < len(self.steps):
            loop = next((block for block in self.steps[at].path if block.kind == "loop"), None)
            low, high = at, at + 1
            while loop and low and loop in self.steps[low - 1].path:
                low -= 1
            while loop and high < len(self.steps) and loop in self.steps[high].path:
                high += 1
            yield from self.steps[at:high]
            if loop:
                yield from self.steps[low:high] * 2
            at = high

    def _collect(self, first: Iterable[Step], only_buffer: Buffer | None = None) -> Slice:
        """Collect `first` and all steps on which it depends."""
        found: dict[int, Step] = {step.order: step for step in first}
        queue = list(found.values())
        ends: dict[str, Buffer] = {only_buffer.name: only_buffer} if only_buffer else {}
        while queue:
            step = queue.pop()
            for use in step.reads:
                writers = tuple(self._reaching(use, step.order, step.path))
                for writer in writers:
                    if writer.order not in found:
                        found[writer.order] = writer
                        queue.append(writer)
                # A read without a certain writer is an end of the slice. An `in_out_ptr` to fresh memory is
                # not an unset read: a fused reduction writes it first.
                if any(_certain(writer, use, step.path) for writer in writers):
                    continue
                root = self.root(use.name)
                if root.kind in SOURCES or (use.pure and not writers):
                    ends[root.name] = root
        inputs = tuple(name for name, buffer in ends.items() if buffer.kind == "input")
        constants = tuple(name for name, buffer in ends.items() if buffer.kind == "constant")
        unset = tuple(name for name, buffer in ends.items() if buffer.kind not in SOURCES)
        ordered = tuple(found[order] for order in sorted(found))
        return Slice(ordered, inputs, constants, unset)

    def root(self, name: str) -> Buffer:
        """Follow a variable's aliases to the input, constant or first variable with this memory."""
        buffer = self.body.buffers[name]
        while buffer.kind not in SOURCES and buffer.base in self.body.buffers and buffer.base is not None:
            base = self.body.buffers[buffer.base]
            if base.storage != buffer.storage or base is buffer:
                break
            buffer = base
        return buffer

    def _reaching(self, use: Use, order: int, path: tuple[Block, ...]) -> Iterator[Step]:
        """Yield writers whose values `use` may see at `order`, newest first.

        In a loop, later writers follow: the previous iteration ran them.
        """
        writers = self._writers.get(use.storage, [])
        position = bisect_left(writers, order)
        killed = False
        for index in range(position - 1, -1, -1):
            step = self.steps[writers[index]]
            if not _touches(step, use):
                continue
            yield step
            if _certain(step, use, path):
                killed = True
                break
        loop = next((block for block in reversed(path) if block.kind == "loop"), None)
        if loop is None or (killed and loop in self.steps[writers[index]].path):
            return
        for later in writers[position:]:
            step = self.steps[later]
            if loop in step.path and _touches(step, use):
                yield step

    def _step(self, order: int, node: Launch | Transfer) -> Step:
        path = tuple(block for block in node.context if block.kind in ("if", "else", "loop"))
        # Tensors that decide whether a branch is taken or a loop continues.
        controls = self._tensors_in(self.body.exits.get(block, block.header) for block in path)
        buffers = self.body.buffers
        if isinstance(node, Transfer):
            source, written = buffers.get(node.reads or ""), buffers.get(node.writes)
            reads = [self._whole_use(source)] if source else []
            writes = [self._whole_use(written)] if written else []
        else:
            # A tensor that is only partly overwritten keeps old values.
            reads = [self._use(a) for a in node.tensors if a.role != "written" or a.partial]
            writes = [self._use(a) for a in node.tensors if a.role != "read"]
            # The tensors behind scalar arguments: from an `.item()`, or a data-dependent size.
            reads += self._tensors_in(a.expression for a in node.arguments if a.kind in ("symbol", "scalar"))
        return Step(
            order, node, tuple(dict.fromkeys([*reads, *controls])), tuple(dict.fromkeys(writes)), path
        )

    def _use(self, argument: Argument) -> Use:
        buffer = self.body.buffers[argument.target or ""]
        view = argument.view
        reach = _extent(view or buffer, shifted(buffer.offset, view.offset) if view else buffer.offset)
        whole = argument.role in ("written", "read_write") and view is None and _covers(buffer)
        return Use(buffer.name, buffer.storage, whole, reach, argument.role == "read")

    def _whole_use(self, buffer: Buffer) -> Use:
        return Use(buffer.name, buffer.storage, _covers(buffer), _extent(buffer, buffer.offset))

    def _tensors_in(self, expressions: Iterable[str]) -> list[Use]:
        """The tensors that expressions depend on."""
        symbols = [symbol for text in expressions for symbol in origins(text, self.body.symbols)]
        found = [(symbol, self.body.buffers.get(symbol.tensor or "")) for symbol in symbols]
        return [
            self._whole_use(buffer)
            for symbol, buffer in found
            if buffer and not (symbol.kind in ("size", "stride") and buffer.kind in SOURCES)
        ]


def _covers(buffer: Buffer) -> bool:
    """Whether the variable owns or reuses its whole storage, so that a write to it covers the storage."""
    return buffer.kind not in ("view", "alias") or (buffer.reused and buffer.offset in ("0", "0L"))
