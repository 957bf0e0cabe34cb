"""Compares what the reader said of a package with what the witness saw a run of it do.

The run decides: a call that the reader skipped, put elsewhere or gave other arguments is a difference.
Tensors are the same when their memory is; sizes, strides and numbers are worked out from the reader's
expressions with the sizes of this call.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mcp_server.package.calls import Body
from mcp_server.package.launches import Argument, Buffer, Launch, Transfer, shifted
from mcp_server.package.statements import braced, read_reference
from mcp_server.package.symbols import names_in
from mcp_server.package.terms.blocks import Block
from mcp_server.package.terms.sizes import evaluate
from mcp_server.package.wrapper import Wrapper

Json = dict[str, Any]
Node = Launch | Transfer
_FLOATS = {"float": "f", "double": "d"}
_SCRATCH = 2
"""Triton 3.6 hands every kernel two scratch pointers that the wrapper sets to zero."""


@dataclass
class Agreement:
    """`differences` is what is not as the reader said; `checked` counts comparisons by kind."""

    differences: list[str] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    launches: tuple[int, ...] = ()


def compare(wrapper: Wrapper, constants: Mapping[str, str], run: Json) -> Agreement:
    """Follow a recorded run through the launches that were read.

    `constants` maps the wrapper's name of a constant to its name in the model.
    """
    if wrapper.folding is None:
        return _Comparison(wrapper, wrapper.run, constants, run).follow()
    first = len(wrapper.folding.launches)  # it is a straight list, and runs within the first call
    parts = [{**run, "calls": run["calls"][:first]}, {**run, "calls": run["calls"][first:]}]
    bodies = [wrapper.folding, wrapper.run]
    told = [_Comparison(wrapper, b, constants, r).follow() for b, r in zip(bodies, parts, strict=True)]
    return Agreement(
        [difference for one in told for difference in one.differences],
        told[0].checked + told[1].checked,
        told[1].launches,
    )


def path_of(nodes: Sequence[Node], names: Sequence[str], called: Sequence[str]) -> list[int] | None:
    """The nodes that a sequence of calls went through, branches and loops considered; None for no way."""
    reached: list[dict[int, int]] = [{-1: -1}]
    for name in called:
        step: dict[int, int] = {}
        for last in reached[-1]:
            for node in _successors(nodes, last):
                if node < len(nodes) and names[node] == name:
                    step.setdefault(node, last)
        reached.append(step)
    ends = [last for last in reached[-1] if len(nodes) in _successors(nodes, last)]
    if not ends:
        return None
    path = [ends[0]]
    for step in reversed(reached[2:]):
        path.append(step[path[-1]])
    return path[::-1] if called else []


def _successors(nodes: Sequence[Node], last: int) -> Iterator[int]:
    """Nodes that may run right after one (-1: the start); `len(nodes)` is the end."""
    around = nodes[last].context if last >= 0 else ()
    for loop in (block for block in around if block.kind == "loop"):
        inside = [k for k in range(len(nodes)) if loop in nodes[k].context]
        for position in inside:
            yield position
            if not _avoidable(nodes[position], around):
                break
    for following in range(last + 1, len(nodes) + 1):
        yield following
        if following < len(nodes) and not _avoidable(nodes[following], around):
            break


def _avoidable(node: Node, around: Sequence[Block]) -> bool:
    """Whether a run may pass a node by: in a branch not taken, or behind the exit of a loop."""
    return any(
        block.kind == "loop" or (block.kind in ("if", "else") and block not in around)
        for block in node.context
    )


class _Comparison:
    """One run, followed call by call."""

    def __init__(self, wrapper: Wrapper, body: Body, constants: Mapping[str, str], run: Json) -> None:
        self.wrapper, self.body, self.constants, self.run = wrapper, body, constants, run
        self.result = Agreement()
        self.values: dict[str, int] = {}
        self.facts: dict[str, Json] = {}
        self.memory: dict[int, tuple[int, int]] = {}
        self.spans: list[tuple[int, int, int]] = []
        self.spoiled: set[int] = set()  # storages that some call has written
        self.written: set[int] = set()  # storages that the call at hand may write
        self.where = ""

    @cached_property
    def nodes(self) -> list[Node]:
        moves = [t for t in self.body.transfers if t.callee.startswith("aoti_torch_")]
        return sorted([*self.body.launches, *moves], key=lambda node: node.start)

    def follow(self) -> Agreement:
        for position, buffer in self.wrapper.inputs().items():
            self.facts[buffer.name] = self.run["inputs"][position]
        calls = [c for c in self.run["calls"] if not c["name"].startswith("aoti_torch_item_")]
        names = [self._symbol(node) for node in self.nodes]
        path = path_of(self.nodes, names, [c["name"] for c in calls])
        if path is None:
            self._differ(f"the run called {[c['name'] for c in calls]}, read was {names}")
            return self.result
        steps = iter(path)
        last = -1
        for order, call in enumerate(self.run["calls"]):
            if call["name"].startswith("aoti_torch_item_"):
                self._item(call)
                continue
            position = next(steps)
            if position <= last:
                self._forget_from(position)
            last = position
            self._node(self.nodes[position], call, order)
        self.result.launches = tuple(n.index for p in path if isinstance(n := self.nodes[p], Launch))
        if self.body is self.wrapper.run:
            self._outputs()
        self.where = ""
        self._distinct()
        return self.result

    def _symbol(self, node: Node) -> str:
        return (
            node.symbol if isinstance(node, Launch) and node.symbol in self._kernel_symbols else node.callee
        )

    @cached_property
    def _kernel_symbols(self) -> set[str]:
        return {kernel.symbol for kernel in self.wrapper.kernels.values()}

    def _differ(self, what: str) -> None:
        self.result.differences.append(f"{self.where}{what}")

    def _same(self, kind: str, told: object, seen: object, what: str) -> None:
        self.result.checked[kind] += 1
        if told != seen:
            self._differ(f"{what}: {kind} was read as {told}, the run had {seen}")

    def _forget_from(self, position: int) -> None:
        """The next turn of a loop allocates its tensors anew."""
        start = self.nodes[position].start
        for storage, (_, first) in list(self.memory.items()):
            if first >= start:
                del self.memory[storage]

    def _node(self, node: Node, call: Json, order: int) -> None:
        self.where = f"line {node.line}, {self._symbol(node)}: "
        self.order, self.node = order, node
        if isinstance(node, Transfer):
            return
        self.written = {self.body.buffers[name].storage for name in node.writes}
        if "words" in call:
            self._kernel(node, call)
        elif not call["known"]:
            self._differ("a call that is in no header of torch")
        else:
            self._shim(node, call["arguments"])

    def _shim(self, launch: Launch, told: list[Json]) -> None:
        for argument in launch.arguments:
            seen = told[argument.position]
            if argument.is_tensor:
                self._tensor(argument, _given(seen, argument.element))
            elif argument.kind == "null":
                self._same("null", None, _given(seen, None) or seen.get("text"), argument.expression)
            elif argument.kind in ("symbol", "scalar"):
                self._scalar(argument, seen)
            elif argument.kind == "sizes":
                self._sizes(argument, seen)

    def _scalar(self, argument: Argument, seen: Json) -> None:
        if argument.expression.startswith('"'):
            self._same("text", argument.expression.strip('"'), seen.get("text"), argument.name)
            return
        if argument.expression.startswith("&"):
            return  # the address of a local variable, which the reader does not follow
        number = seen["value"] if "value" in seen else next(iter(seen.get("values", [])), None)
        if number is not None:
            self._number(argument.expression, number, argument.name or str(argument.position))

    def _number(self, expression: str, seen: float, what: str) -> None:
        told = self._evaluate(expression)
        self._same("number", None if told is None else float(told), float(seen), f"{what} = {expression}")

    def _sizes(self, argument: Argument, seen: Json) -> None:
        if "values" not in seen:
            return
        parts = self._array(argument)
        told = [self._evaluate(part) for part in parts]
        self._same("array", told, seen["values"], argument.expression)

    def _array(self, argument: Argument) -> Sequence[str]:
        reference = read_reference(self.wrapper.text, argument.start, argument.end)
        if reference.array is not None:
            return [self.wrapper.text[a:b] for a, b in reference.array]
        return braced(argument.expression)

    def _kernel(self, launch: Launch, call: Json) -> None:
        kernel = self.wrapper.kernels[launch.kernel]
        if "grid" in call:
            told = [self._floor(part) for part in self.wrapper.grid(launch)]
            self._same("grid", told, call["grid"], "blocks")
            self._same("block", (kernel.num_warps or 0) * 32, call["threads"], "threads")
            self._same("shared", kernel.shared_bytes, call["shared_bytes"], "shared bytes")
        handed = [
            a for a in launch.arguments if a.kind != "context" and _reaches_device(a.name, kernel.source)
        ]
        if "bytes" in call:
            self._same("count", len(handed) + _SCRATCH, len(call["words"]), "parameters")
        for position, argument in enumerate(handed[: len(call["words"])]):
            word = call["words"][position]
            if argument.is_tensor:
                self._pointer(argument, word, call["tensors"])
            else:
                self._word(argument, word, call.get("bytes", [8] * (position + 1))[position])

    def _floor(self, expression: str) -> int | None:
        value = self._evaluate(expression)
        return None if value is None else math.floor(value)

    def _pointer(self, argument: Argument, pointer: int, tensors: list[Json]) -> None:
        """Of the tensors at that address the one of the shape that was read, if there is one."""
        found = [t for t in tensors if t["data"] == pointer]
        if not found:
            self._differ(f"{argument.name} is {argument.expression}, of which the run knows no such address")
            return
        sizes = self._shape(argument)
        self._tensor(argument, next((t for t in found if t["shape"] == sizes), found[0]))

    def _word(self, argument: Argument, word: int, size: int) -> None:
        if code := _FLOATS.get(argument.type):
            self._number(
                argument.expression, struct.unpack(code, struct.pack("<Q", word)[:size])[0], argument.name
            )
            return
        told = self._evaluate(argument.expression)
        mask = (1 << 8 * size) - 1
        self._same("number", None if told is None else int(told) & mask, word & mask, argument.name)

    def _shape(self, argument: Argument) -> list[int | float | None] | None:
        shape = argument.view or self.body.buffers[argument.target or ""]
        return None if shape.sizes is None else [self._evaluate(part) for part in shape.sizes]

    def _tensor(self, argument: Argument, seen: Json | None) -> None:
        name = argument.target or ""
        if seen is None:
            self._differ(f"{argument.name} is {name}, and the run passed no tensor")
            return
        buffer = self.body.buffers[name]
        if argument.view is None:
            self.facts[name] = seen
        self._layout(argument, buffer, seen)
        self._memory(buffer, seen)
        if buffer.kind == "constant" and buffer.storage not in self.spoiled:
            fqn = self.constants[name]
            known = fqn in seen["constants"] or name in self.wrapper.folded
            self._same("constant", True, known, f"{name} is {fqn}")
        if seen.get("changed"):
            self.result.checked["changed"] += 1
            self.spoiled.add(buffer.storage)
            if buffer.storage not in self.written:
                self._differ(f"{argument.name} {name} is only read, and the call changed it")

    def _layout(self, argument: Argument, buffer: Buffer, seen: Json) -> None:
        what = f"{argument.name} {buffer.name}"
        shape = argument.view or buffer
        if shape.sizes is not None:
            self._same("shape", [*map(self._evaluate, shape.sizes)], seen["shape"], what)
        if shape.strides is not None:
            self._same("stride", [*map(self._evaluate, shape.strides)], seen["stride"], what)
        if buffer.dtype is not None:
            self._same("dtype", buffer.dtype, seen["dtype"], what)
        offset = shifted(buffer.offset, argument.view.offset) if argument.view else buffer.offset
        if offset is not None and buffer.kind != "pool":
            self._same("offset", self._evaluate(offset), _offset(seen), what)

    def _memory(self, buffer: Buffer, seen: Json) -> None:
        """One storage, one place; and the place of an input is where the caller's tensor lies."""
        if buffer.kind == "input" and buffer.position is not None:
            given = self.run["inputs"][buffer.position]
            self._same("input", given["storage"], seen["storage"], buffer.name)
        if buffer.kind in ("assigned", "pool") or not math.prod(seen["shape"]):
            return
        known, _ = self.memory.setdefault(buffer.storage, (seen["storage"], self.node.start))
        self._same("memory", known, seen["storage"], buffer.name)
        self.spans.append((self.order, buffer.storage, seen["storage"]))

    def _item(self, call: Json) -> None:
        tensor, answer = call["arguments"][0]["tensor"], call["arguments"][1].get("result")
        storages = {self.body.buffers[s.tensor].storage: s.name for s in self._values_read() if s.tensor}
        names = [n for st, n in storages.items() if self.memory.get(st, (0, 0))[0] == tensor["storage"]]
        self.result.checked["item"] += 1
        if answer is not None:
            self.values.update(dict.fromkeys(names, answer))

    def _values_read(self) -> list[Any]:
        return [s for s in self.body.symbols.values() if s.kind == "value"]

    def _outputs(self) -> None:
        self.where = "output "
        for index, name in self.body.outputs.items():
            buffer = self.body.buffers[name]
            seen = self.run["outputs"][index]
            if buffer.sizes is not None:
                self._same("shape", [*map(self._evaluate, buffer.sizes)], seen["shape"], str(index))
            if buffer.storage in self.memory:
                self._same("memory", self.memory[buffer.storage][0], seen["storage"], str(index))

    def _distinct(self) -> None:
        """Two storages that are in use at the same time lie in different places."""
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        for order, storage, place in self.spans:
            first, _ = spans.get((storage, place), (order, order))
            spans[storage, place] = (first, order)
        entries = sorted(spans.items(), key=lambda item: (item[0][1], item[1]))
        for (one, (_, end)), (other, (start, _)) in itertools.pairwise(entries):
            self.result.checked["distinct"] += 1
            if one[1] == other[1] and one[0] != other[0] and start <= end:
                self._differ(f"storages {one[0]} and {other[0]} were read as two and are one")

    def _evaluate(self, expression: str) -> int | float | None:
        values = {n: v for n in names_in(expression) if (v := self._value(n)) is not None}
        number = evaluate(expression, values)
        if number is None:
            return None
        return int(number) if number.denominator == 1 else float(number)

    def _value(self, name: str, depth: int = 0) -> int | None:
        symbol = self.body.symbols.get(name)
        if symbol is None or name in self.values or depth > 20:
            return self.values.get(name)
        if symbol.kind in ("size", "stride") and symbol.tensor in self.facts and symbol.dim is not None:
            part = "shape" if symbol.kind == "size" else "stride"
            return int(self.facts[symbol.tensor or ""][part][symbol.dim])
        inner = {n: v for n in names_in(symbol.expression) if (v := self._value(n, depth + 1)) is not None}
        number = evaluate(symbol.expression, inner)
        return int(number) if number is not None else None


def _reaches_device(parameter: str, source: str) -> bool:
    """Whether a parameter of a kernel's function is one of the kernel: neither its grid nor compiled in."""
    return not parameter.startswith("_grid_") and f"'{parameter}': 'constexpr'" not in source


def _given(seen: Json, element: int | None) -> Json | None:
    if element is not None:
        found: Json | None = seen["tensors"][element]
        return found
    return seen.get("tensor") or seen.get("result")


_ITEM_BYTES = {"float32": 4, "int64": 8, "int32": 4, "float64": 8, "bool": 1, "uint8": 1, "int8": 1}


def _offset(seen: Json) -> int:
    return int((seen["data"] - seen["storage"]) // _ITEM_BYTES.get(seen["dtype"], 2))
