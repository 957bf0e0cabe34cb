"""Cuts a part out of a program, with recorded values and stand-ins where the rest was."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
from torch.fx.node import map_aggregate
from torch.utils import _pytree

from ..interpret import layout
from .record import Program, is_unit, maker

# Arguments of operators that hold sizes literally: of view and expand, reshape, and those that make tensors.
SIZE_ARGUMENTS = ("size", "shape", "split_sizes")
# Namespaces of torch's own operators.
TORCHS = frozenset({"aten", "prims", "prim", "higher_order", "_operator", "inductor", "quantized_decomposed"})
INDEXING = ("embedding", "index", "gather", "scatter", "take")


class Uncuttable(Exception):
    """This part cannot be cut out: a value that it needs was not recorded, or is itself bad."""


@dataclass(frozen=True)
class Plan:
    """What to keep. `windows` map a size to the part of it that stays; `made` tensors are drawn from a seed.

    `stand_ins` puts operators without the user's code in the places of those that are not torch's. `dynamic`
    keeps sizes symbolic where the program has them so; else all are those of the call.
    """

    keep: tuple[str, ...]
    dynamic: bool = False
    windows: tuple[tuple[int, tuple[int, int]], ...] = ()
    made: frozenset[str] = frozenset()
    stand_ins: bool = False


@dataclass
class Cut:
    """A graph whose placeholders are `arguments`, and whose attributes are `weights` and `submodules`.

    `stand_ins` are lines that define operators; without them those that are not torch's are the user's.
    """

    graph: torch.fx.Graph
    arguments: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    submodules: dict[str, torch.fx.GraphModule] = field(default_factory=dict)
    dynamic: dict[str, dict[int, tuple[Optional[int], Optional[int]]]] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {**self.arguments, **self.weights}


@dataclass(frozen=True)
class Recorded:
    """Values of nodes in files; `bad` are those whose value is NaN or infinite."""

    directory: str
    bad: frozenset[str]

    def __call__(self, name: str) -> Any:
        path = os.path.join(self.directory, name + ".pt")
        if name in self.bad:
            raise Uncuttable(name + " is already bad")
        if not os.path.exists(path):
            raise Uncuttable("no value of {} was recorded".format(name))
        return torch.load(path, weights_only=True)


def cut(program: Program, plan: Plan, recorded: Callable[[str], Any]) -> Cut:
    """The kept nodes of the program. Raises `Uncuttable`."""
    return _Cutter(program, plan, recorded).cut()


def shrinkable(program: Program, found: Cut) -> list[int]:
    """Sizes of the cut's tensors, largest first, less those that something is indexed by."""
    nodes = {node.name: node for node in program.nodes}
    kept = [nodes[node.name] for node in found.graph.nodes if node.name in nodes]
    fixed = {size for node in kept if _indexes(node) for size in _sizes_of(node.args[0])}
    sizes = {size for tensor in found.tensors.values() for size in tensor.shape if size > 2}
    return sorted(sizes - fixed, reverse=True)


def _indexes(node: torch.fx.Node) -> bool:
    name = str(node.target).partition(".")[2]
    return node.op == "call_function" and bool(node.args) and name.startswith(INDEXING)


def _sizes_of(node: Any) -> list[int]:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    return [int(size) for size in shape if isinstance(size, int)]


class _Cutter:
    def __init__(self, program: Program, plan: Plan, recorded: Callable[[str], Any]) -> None:
        self.program = program
        self.plan = plan
        self.kept = frozenset(plan.keep)
        self.recorded = recorded
        self.windows = dict(plan.windows)
        self.result = Cut(torch.fx.Graph())
        self.copies: dict[torch.fx.Node, Any] = {}

    def cut(self) -> Cut:
        for node in self.program.nodes:
            if node.name in self.kept:
                self._keep(node)
        self.result.graph.output(tuple(self._ends()))
        self.result.graph.lint()
        return self.result

    def _keep(self, node: torch.fx.Node) -> None:
        copy = self.copies[node] = self.result.graph.node_copy(node, self._resolve)
        copy.args, copy.kwargs = self._resized(copy)
        several = node.meta["val"] if isinstance(node.meta["val"], (list, tuple)) else ()
        for user in node.users:
            if maker(user) is node:
                self.copies[user] = self.result.graph.node_copy(user, self._resolve)
        if several and not copy.users:
            place = next(i for i, value in enumerate(several) if isinstance(value, torch.Tensor))
            self.result.graph.call_function(operator.getitem, (copy, place))

    def _resized(self, node: torch.fx.Node) -> tuple[Any, Any]:
        """The node's arguments, with the literal sizes that a window made smaller."""
        schema = getattr(node.target, "_schema", None)
        if not self.windows or schema is None:
            return node.args, node.kwargs
        names = [argument.name for argument in schema.arguments]
        args = tuple(self._resize(n, a) for n, a in zip(names, node.args)) + node.args[len(names) :]
        return args, {name: self._resize(name, value) for name, value in node.kwargs.items()}

    def _resize(self, name: str, value: Any) -> Any:
        return map_aggregate(value, self._resize_one) if name in SIZE_ARGUMENTS else value

    def _resize_one(self, size: Any) -> Any:
        window = self.windows.get(size) if isinstance(size, int) else None
        return window[1] - window[0] if window else size

    def _resolve(self, node: torch.fx.Node) -> Any:
        if node not in self.copies:
            self.copies[node] = self._replacement(node)
        return self.copies[node]

    def _replacement(self, node: torch.fx.Node) -> Any:
        """What stands for a node that is not kept."""
        if node.op == "get_attr":
            self.result.submodules[str(node.target)] = getattr(self.program.module, str(node.target))
            return self.result.graph.get_attr(str(node.target))
        if node.op == "placeholder":
            return self._leaf(node, self.program.values[node.name])
        if self.plan.dynamic and not is_unit(node) and maker(node) is None:
            return self._symbol(node)
        return self._leaf(node, self.recorded(node.name))

    def _symbol(self, node: torch.fx.Node) -> Any:
        """A size, computed as in the program where what it is computed from is there."""
        try:
            return self.result.graph.node_copy(node, self._resolve)
        except Uncuttable:
            return self.recorded(node.name)

    def _leaf(self, node: torch.fx.Node, value: Any) -> Any:
        """A tensor as an argument or a weight; a plain value as itself."""
        if not isinstance(value, torch.Tensor):
            return value
        weight = node.name in self.program.weights
        copy = self.result.graph.get_attr(node.name) if weight else self.result.graph.placeholder(node.name)
        held = self.result.weights if weight else self.result.arguments
        held[str(copy.target) if weight else copy.name] = self._narrowed(value)
        if self.plan.dynamic and not weight:
            self.result.dynamic[copy.name] = self._symbolic(node)
        return copy

    def _narrowed(self, value: torch.Tensor) -> torch.Tensor:
        small = value.detach()
        for dim, size in enumerate(value.shape):
            start, end = self.windows.get(size, (0, size))
            small = small.narrow(dim, start, end - start)
        return small

    def _symbolic(self, node: torch.fx.Node) -> dict[int, tuple[Optional[int], Optional[int]]]:
        """Dimensions that the program keeps open, with their ranges."""
        found = {}
        for dim, size in enumerate(node.meta["val"].shape):
            if not isinstance(size, int):
                found[dim] = self.program.ranges.get(str(size), (None, None))
        return found

    def _ends(self) -> list[torch.fx.Node]:
        """The tensors that nothing else uses."""
        graph = self.result.graph
        made = [node for node in graph.nodes if node.op == "call_function"]
        ends = [node for node in made if not node.users and self._gives_tensor(node)]
        if not ends:
            raise Uncuttable("nothing is left that gives a tensor")
        return ends

    def _gives_tensor(self, copy: torch.fx.Node) -> bool:
        return isinstance(copy.meta.get("val"), torch.Tensor) or "val" not in copy.meta


def users_operators(found: Cut) -> list[tuple[torch.fx.Node, Any]]:
    """The operators that are not torch's, each with the node that calls it or hands it on, submodules too."""
    graphs = [found.graph, *(module.graph for module in found.submodules.values())]
    nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    pairs = [(node, value) for node in nodes for value in (node.target, *node.args, *node.kwargs.values())]
    return [(node, value) for node, value in pairs if getattr(value, "namespace", "aten") not in TORCHS]


def size_in_bytes(tensors: dict[str, torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in _pytree.tree_leaves(tensors))


def stand_ins(found: Cut, symbols: dict[Any, int]) -> tuple[str, ...]:
    """A line for each user's operator of the cut, that defines it without the user's code.

    `symbols` are the values of the size symbols in this call. Raises `Uncuttable` for an operator whose
    results are no tensors and plain values, depend on the data in size, or differ between two uses.
    """
    lines: dict[str, str] = {}
    for node, used in users_operators(found):
        if used is not node.target:
            raise Uncuttable("{} changes its arguments in place".format(used))
        schema = str(used._schema)
        name = schema.partition("(")[0]
        results = _text(node.meta.get("val"), symbols)
        tags = ", ".join("torch." + str(tag) for tag in used.tags)
        line = "stand_in({!r}, {!r}, [{}], lambda: {})".format(name, schema[len(name) :], tags, results)
        if lines.setdefault(name, line) != line:
            raise Uncuttable("the results of {} differ between its uses".format(name))
    return tuple(lines.values())


def _text(value: Any, symbols: dict[Any, int]) -> str:
    """What gives results like these: memory of the same layouts, plain values as they are."""
    if isinstance(value, (list, tuple)):
        inner = "".join(_text(item, symbols) + ", " for item in value)
        return "[{}]".format(inner) if isinstance(value, list) else "({})".format(inner)
    if isinstance(value, torch.Tensor):
        seen = layout(value, symbols)
        if None in seen["shape"] or None in seen["stride"]:
            raise Uncuttable("the size of a result depends on the data")
        sizes = tuple(seen["shape"]), tuple(seen["stride"])
        return "torch.empty_strided({}, {}, dtype={}, device={!r})".format(
            *sizes, seen["dtype"], seen["device"]
        )
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise Uncuttable("a result is neither a tensor nor a plain value")


# ---- from here on copied ----


def stand_in(name: str, schema: str, tags: Any, results: Any) -> None:
    """Define an operator that gives memory of fixed layouts: it stands in for one that is not torch's."""

    def give(*_args: Any, **_kwargs: Any) -> Any:
        return results()

    torch.library.define(name, schema, tags=tags)
    torch.library.impl(name, "default")(give)
    torch.library.register_fake(name)(give)
