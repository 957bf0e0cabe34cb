"""Flattens an exported program to one graph, records the values of its nodes, and cuts parts out of it."""

from __future__ import annotations

import contextlib
import operator
import os
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree

from .. import events
from ..interpret import bind, difference
from ..process import synchronize
from ..protocol import Plan
from ..report import Refused, Report
from ..tensors import only_tensors

WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
CAP = 4 << 30  # limit of all recorded values together, in bytes


@dataclass(frozen=True)
class Program:
    """A flat graph. `values` by placeholder; `weights`: those of weights; `ranges`: (min, max) by symbol."""

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    values: dict[str, Any]
    weights: frozenset[str]
    ranges: dict[str, tuple[int | None, int | None]]

    @property
    def nodes(self) -> list[torch.fx.Node]:
        return list(self.module.graph.nodes)

    @property
    def units(self) -> list[str]:
        """The names of the nodes that compute tensors. A reduction keeps or omits each of them."""
        return [node.name for node in self.nodes if is_unit(node)]


def flatten_program(exported: Any, args: Any, kwargs: Any) -> Program:
    """Flatten a program and replace in-place operators. Raise `Refused` if it takes tokens or objects."""
    from torch.export._tree_utils import reorder_kwargs

    flat = list(_pytree.tree_leaves((args, reorder_kwargs(kwargs, exported.call_spec.in_spec))))
    schemas = [getattr(node.target, "_schema", None) for node in exported.graph.nodes]
    if any(schema is not None and schema.is_mutable for schema in schemas):
        exported = exported.run_decompositions({})  # keeps operators, but makes them functional
    inputs = iter(flat)
    values: dict[str, Any] = {}
    weights = set()
    state = {**exported.constants, **exported.state_dict}
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            values[spec.arg.name] = next(inputs, None)
        elif spec.kind in WEIGHTS:
            values[spec.arg.name] = state[spec.target].detach()
            weights.add(spec.arg.name)
        else:
            raise Refused("the program takes what a reproduction cannot hold", str(spec.kind), "tensors")

    def number(bound: Any) -> int | None:
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # None if infinite
            return int(bound)
        return None

    ranges = {str(s): (number(r.lower), number(r.upper)) for s, r in exported.range_constraints.items()}
    return Program(exported.graph_module, tuple(flat), values, frozenset(weights), ranges)


def is_unit(node: torch.fx.Node) -> bool:
    """Whether the node computes tensors. A node that only picks one of several results does not."""
    computes = node.op == "call_function" and bool(only_tensors(node.meta.get("val")))
    return computes and picks_from(node) is None


def picks_from(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node with several results from which this node picks one. None if it picks none."""
    picks = node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
    source = node.args[0] if picks else None
    several = isinstance(source, torch.fx.Node) and isinstance(source.meta.get("val"), (list, tuple))
    return source if several else None


def readers_of(program: Program) -> dict[str, list[str]]:
    """List the units that read the results of each unit, directly or through nodes that pick a result."""
    found = {}
    for node in program.nodes:
        if is_unit(node):
            picked = [user for user in node.users if picks_from(user) is not None]
            readers = {*node.users, *(reader for pick in picked for reader in pick.users)}
            found[node.name] = [reader.name for reader in readers if is_unit(reader)]
    return found


class Recorder(torch.fx.Interpreter):
    """Runs the graph node by node, and saves each value. The report shows which node killed the process."""

    def __init__(self, program: Program, directory: str, report: Report) -> None:
        super().__init__(program.module)
        self.program = program
        self.directory = directory
        self.report = report
        self.room = CAP
        self.symbols = bind(program.module, list(program.values.values()))

    def record(self) -> list[Any]:
        """Return the outputs. Report `units`, `node` before and `value` after each node, `fake_mismatch`."""
        os.makedirs(self.directory, exist_ok=True)
        self.report.event(events.Units(readers_of(self.program), bool(self.program.ranges)))
        self.extra_traceback = False
        with torch.no_grad():
            found = self.run(*self.program.values.values(), enable_io_processing=False)
        return list(found)

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        self.report.event(events.Node(n.name, str(n.target)))
        result = super().run_node(n)
        synchronize()
        if not str(n.target).startswith("aten."):
            pairs = zip(only_tensors(n.meta.get("val")), only_tensors(result))
            if any(difference(wanted, got, self.symbols) for wanted, got in pairs):
                self.report.event(events.FakeMismatch(n.name, str(n.target), []))
        self._keep(n.name, result)
        return result

    def _keep(self, name: str, result: Any) -> None:
        """Save one value. If a node has several results, the nodes that pick them are saved instead."""
        nan = inf = False
        if isinstance(result, torch.Tensor):
            self.room -= result.numel() * result.element_size()
            if self.room < 0:
                return
            result = compact(result)
            if result.is_floating_point() or result.is_complex():
                wide = result.float() if result.element_size() == 1 else result
                # Do not count -inf, the usual value of masks.
                high = torch.isinf(wide) if wide.is_complex() else torch.isposinf(wide)
                nan, inf = bool(torch.isnan(wide).any()), bool(high.any())
        elif not isinstance(result, (int, float, bool)):
            return
        torch.save(result, os.path.join(self.directory, name + ".pt"))
        self.report.event(events.Value(name, nan, inf))


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """Copy to the CPU, without the rest of a larger storage. The strides of a dense tensor stay."""
    return tensor.detach().cpu().clone(memory_format=torch.preserve_format)


# Namespaces of torch's own operators.
TORCHS = frozenset({"aten", "prims", "prim", "higher_order", "_operator", "inductor", "quantized_decomposed"})


class Uncuttable(Exception):
    """The plan gives no program, for example because a needed value was not recorded or is itself bad."""


@dataclass
class Cut:
    """A graph whose placeholders are `arguments`, and whose attributes are `weights` and `submodules`.

    `dynamic`: bounds of symbolic dimensions, by argument and dimension.
    """

    graph: torch.fx.Graph
    arguments: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    submodules: dict[str, torch.fx.GraphModule] = field(default_factory=dict)
    dynamic: dict[str, dict[int, tuple[int | None, int | None]]] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {**self.arguments, **self.weights}


@dataclass(frozen=True)
class Recorded:
    """Reads recorded values of nodes. `bad` are nodes with NaN or infinity."""

    directory: str
    bad: frozenset[str]

    def __call__(self, name: str) -> Any:
        path = os.path.join(self.directory, name + ".pt")
        if name in self.bad:
            raise Uncuttable(name + " is already bad")
        if not os.path.exists(path):
            raise Uncuttable("no value of {} was recorded".format(name))
        return torch.load(path, weights_only=True)


class Cutter:
    """Cuts the kept nodes out of a program."""

    def __init__(self, program: Program, plan: Plan, recorded: Callable[[str], Any]) -> None:
        self.program = program
        self.plan = plan
        self.recorded = recorded
        self.result = Cut(torch.fx.Graph())
        self.copies: dict[torch.fx.Node, Any] = {}

    def cut(self) -> Cut:
        """Build the cut. Its outputs are the tensors that nothing uses. May raise `Uncuttable`."""
        graph, keep = self.result.graph, frozenset(self.plan.keep)
        for node in self.program.nodes:
            if node.name in keep:
                self._keep(node)
        unused = [node for node in graph.nodes if node.op == "call_function" and not node.users]
        ends = [n for n in unused if "val" not in n.meta or isinstance(n.meta["val"], torch.Tensor)]
        if not ends:
            raise Uncuttable("nothing is left that gives a tensor")
        graph.output(tuple(ends))
        graph.lint()
        return self.result

    def _keep(self, node: torch.fx.Node) -> None:
        copy = self.copies[node] = self.result.graph.node_copy(node, self._resolve)
        several = node.meta["val"] if isinstance(node.meta["val"], (list, tuple)) else ()
        for user in node.users:
            if picks_from(user) is node:
                self.copies[user] = self.result.graph.node_copy(user, self._resolve)
        if several and not copy.users:
            place = next(i for i, value in enumerate(several) if isinstance(value, torch.Tensor))
            self.result.graph.call_function(operator.getitem, (copy, place))

    def _resolve(self, node: torch.fx.Node) -> Any:
        """The node's counterpart in the cut graph, or its value if the node is not kept."""
        if node not in self.copies:
            graph, name = self.result.graph, str(node.target)
            if node.op == "get_attr":
                self.result.submodules[name] = getattr(self.program.module, name)
                self.copies[node] = graph.get_attr(name)
            elif node.op == "placeholder":
                self.copies[node] = self._leaf(node, self.program.values[node.name])
            elif self.plan.dynamic and not is_unit(node) and picks_from(node) is None:
                try:  # compute a size as the program does, if the needed values are there
                    self.copies[node] = graph.node_copy(node, self._resolve)
                except Uncuttable:
                    self.copies[node] = self.recorded(node.name)
            else:
                self.copies[node] = self._leaf(node, self.recorded(node.name))
        return self.copies[node]

    def _leaf(self, node: torch.fx.Node, value: Any) -> Any:
        """Add a tensor as an argument or weight. Return a plain value unchanged."""
        if not isinstance(value, torch.Tensor):
            return value
        if node.name in self.program.weights:
            copy = self.result.graph.get_attr(node.name)
            self.result.weights[str(copy.target)] = value.detach()
            return copy
        copy = self.result.graph.placeholder(node.name)
        self.result.arguments[copy.name] = value.detach()
        if self.plan.dynamic:
            self.result.dynamic[copy.name] = {
                dim: self.program.ranges.get(str(size), (None, None))
                for dim, size in enumerate(node.meta["val"].shape)
                if not isinstance(size, int)
            }
        return copy


def users_operators(found: Cut) -> list[tuple[torch.fx.Node, Any]]:
    """List operators that are not torch's, even in submodules, with the node that calls or passes each."""
    graphs = [found.graph, *(module.graph for module in found.submodules.values())]
    nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    pairs = [(node, value) for node in nodes for value in (node.target, *node.args, *node.kwargs.values())]
    return [(node, value) for node, value in pairs if getattr(value, "namespace", "aten") not in TORCHS]
