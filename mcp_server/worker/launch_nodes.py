"""Finds which node of the program each tensor of a launch holds, and computes nodes from known values.

A launch carries out several nodes and stores few of them. A tensor holds a node if each launch that reads the
tensor carries out a user of the node, and not the node itself.

`Replacement` makes a call with chosen launches in eager mode: values of the program replace their outputs.
They are computed from tensors that the launch reads, where these hold known nodes, and else from the inputs
of the call.
"""

from __future__ import annotations

import contextlib
import json
import operator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Callable, Collection, Iterator, Mapping, Sequence, TypeVar, cast

import torch
from torch.fx import Node

from .compare import Expected
from .eager_values import BIAS, Recorder, operator_name
from .events import LaunchJudged
from .loading import constants_of, load_exported, update_program
from .probes import AFTER, Event, arguments, strided, subscribed
from .protocol import EagerPlan, ExportedRequest
from .report import Refused, Report
from .tensors import laid_out, only_tensors

Known = tuple[str, int, bool]  # node, number of its result, and whether it is a product without its bias
RETURNED = -1  # as a reader: the caller, to whom the tensor is returned
Value = TypeVar("Value")  # a tensor or a placeholder for one


@dataclass(frozen=True)
class Stored:
    """A value that a tensor may hold: result number `place` of a node, with `product` without its bias."""

    node: str
    place: int
    want: Expected
    product: bool = False


class ProgramGraph:
    """The graph of an exported program. `nodes`: the nodes that each launch carries out.

    Nodes without a launch (mostly views) pass values on. An argument that an operator mutates stands for the
    result of the operator from then on.
    """

    def __init__(self, module: Any, nodes: Mapping[int, Sequence[str]]) -> None:
        self.module = module
        self.nodes = {launch: frozenset(names) for launch, names in nodes.items()}
        self.carried = frozenset(name for names in nodes.values() for name in names)
        self.inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.by_name: dict[str, Node] = {node.name: node for node in module.graph.nodes}
        self.takes: dict[Node, list[Node]] = {}
        self.users: dict[Node, list[Node]] = {}
        self.mutated: dict[Node, list[Node]] = {}
        latest: dict[Node, Node] = {}
        for node in module.graph.nodes:
            self.takes[node] = [latest.get(one, one) for one in node.all_input_nodes]
            for one in self.takes[node]:
                self.users.setdefault(one, []).append(node)
            self.mutated[node] = _mutated(node)
            latest.update(dict.fromkeys(self.mutated[node], node))
        self.uses = lru_cache(maxsize=None)(self._uses)

    def _uses(self, name: str) -> frozenset[str]:
        """The nodes with a launch that use this node, directly or through views, and `output` if it does."""
        found: set[str] = set()
        left, seen = list(self.users.get(self.by_name[name], ())), set()
        while left:
            user = left.pop()
            if user in seen:
                continue
            seen.add(user)
            if user.name in self.carried or user.op == "output":
                found.add("output" if user.op == "output" else user.name)
            else:
                left += self.users.get(user, ())
        return frozenset(found)

    def own_values(self, leaves: Sequence[Any]) -> dict[str, Expected]:
        """The inputs, parameters, buffers and constants, by node."""
        module = torch.fx.Interpreter(self.module)
        nodes = [node for node in self.module.graph.nodes if node.op == "get_attr"]
        values = {node.name: module.fetch_attr(str(node.target)) for node in nodes}
        values.update(zip((node.name for node in self.inputs), leaves))
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        return {name: Expected(name, value.detach()) for name, value in tensors.items()}

    def candidates(
        self, launch: int, expected: Mapping[str, list[Expected]], read: Collection[str]
    ) -> Iterator[Stored]:
        """Yield the known values that a launch may store. `read` are the constants that it reads.

        If the launch reads the bias of a product, it does not store the product without its bias.
        """
        for name in sorted(self.nodes.get(launch, ())):
            node = self.by_name.get(name)
            bias = bias_of(node) if node is not None else None
            for place, want in enumerate(expected.get(name, ())):
                product = place > 0 and bias is not None
                if not (product and bias is not None and str(bias.target) in read):
                    yield Stored(name, 0 if product else place, want, product)

    def copied(
        self, launches: Sequence[int], own: Mapping[str, Expected], shape: Sequence[int]
    ) -> Iterator[Stored]:
        """Yield inputs and constants, broadcast to a shape, that nodes of these launches use."""
        names = {name for launch in launches for name in self.nodes.get(launch, ())}
        taken = {one.name for name in names if name in self.by_name for one in self.takes[self.by_name[name]]}
        for name in sorted(taken & own.keys()):
            with contextlib.suppress(RuntimeError):  # the shape does not fit
                yield Stored(name, 0, replace(own[name], eager=own[name].eager.expand(tuple(shape))))

    def taken(self, stored: Stored, readers: Sequence[int]) -> bool:
        """Whether each reader carries out a user of the node or, for a product, the node itself."""
        uses = self.uses(stored.node)
        wanted = {stored.node} if stored.product else uses
        carried = [{"output"} if one == RETURNED else self.nodes.get(one, frozenset()) for one in readers]
        return all(wanted & names for names in carried)

    def whole(self, stored: Stored, launch: int, readers: Sequence[int], *, library: bool) -> bool:
        """Whether the launch computes the whole value: no reader carries out a part of the node.

        A library call computes the whole value of its only node.
        """
        if stored.product or (library and self.nodes[launch] == {stored.node}):
            return True
        return not any(stored.node in self.nodes.get(reader, ()) for reader in readers)

    def values(
        self,
        wanted: Sequence[tuple[str, int, bool]],
        known: Mapping[Known, torch.Tensor],
        leaves: Sequence[Any],
        report: Report,
    ) -> list[torch.Tensor]:
        """Compute nodes, each (name, place, product), in eager mode from `known` values and the inputs.

        To a known product, only add its bias.
        """
        recorder = Recorder(self.module, frozenset(), 0, report)
        env = recorder.env
        env.update(zip(self.inputs, leaves))
        env.update(self.whole_values(known))
        products = self.products(known)
        ends = {self.by_name[name] for name, _, _ in wanted}
        needed = self.needed([name for name, _, _ in wanted], known)
        found: dict[tuple[Node, bool], Any] = {}
        for node in self.module.graph.nodes:
            if node not in needed:
                continue
            bias = bias_of(node) if node in products else None
            value = recorder.run_node(node) if bias is None else products[node] + env[bias]
            # If an operator mutates a buffer, give it a copy.
            mutated = node.op == "get_attr" and any(node in self.mutated[user] for user in node.users)
            env[node] = value.clone() if mutated else value
            if node in ends:
                bare = [products[node]] if bias is not None else recorder.without_bias(node)
                found[node, True] = [one.detach().clone() for one in bare]
                found[node, False] = [one.detach().clone() for one in only_tensors(value)]
        return [found[self.by_name[name], product][place] for name, place, product in wanted]

    def needed(
        self, wanted: Sequence[str], known: Mapping[Known, Value], also: Collection[Node] = ()
    ) -> set[Node]:
        """The nodes to evaluate for the wanted ones, if those in `also` are known, too.

        A known product only needs its bias.
        """
        ready = {*self.inputs, *self.whole_values(known), *also}
        products = self.products(known)
        needed = {self.by_name[name] for name in wanted}
        left = list(needed)
        while left:
            node = left.pop()
            bias = bias_of(node) if node in products else None
            for one in self.takes[node] if bias is None else (bias,):
                if one not in needed and one not in ready:
                    needed.add(one)
                    left.append(one)
        return needed

    def whole_values(self, known: Mapping[Known, Value]) -> dict[Node, Value]:
        """Known values by node, except products. Arguments that an operator mutates are among them."""
        return {
            one: value
            for (name, place, product), value in known.items()
            if not product
            for node in _holders(self.by_name[name], place)
            for one in (node, *self.mutated[node])
        }

    def products(self, known: Mapping[Known, Value]) -> dict[Node, Value]:
        """Known products without their bias, by node."""
        return {self.by_name[name]: value for (name, _, product), value in known.items() if product}


def bias_of(node: Node) -> Node | None:
    """The bias of a product if it is a constant of the program; None otherwise."""
    place, factors = BIAS.get(operator_name(node), (0, ()))
    bias = node.args[place] if factors and len(node.args) > place else None
    return bias if isinstance(bias, Node) and bias.op == "get_attr" else None


def _mutated(node: Node) -> list[Node]:
    """The arguments that an operator mutates, according to its schema."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return []
    pairs = [*zip(schema.arguments, node.args)]
    pairs += [(one, node.kwargs[one.name]) for one in schema.arguments if one.name in node.kwargs]
    return [
        value
        for declared, value in pairs
        if isinstance(value, Node) and declared.alias_info is not None and declared.alias_info.is_write
    ]


def _holders(node: Node, place: int) -> list[Node]:
    """The node itself or, if it has several results, the nodes that select result `place`."""
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return [node]
    return [user for user in node.users if user.target is operator.getitem and user.args[1] == place]


def reshaped(value: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """The values, in row-major order, in another shape and dtype."""
    return value.detach().to(dtype or value.dtype).reshape(tuple(shape))


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy `value` into a tensor of the package, and wait for the copy."""
    tensor.copy_(reshaped(value, tensor.shape))
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


@contextlib.contextmanager
def changing(take: Callable[[Event], bool], report: Report) -> Iterator[None]:
    """During the body, let `take` change what launches wrote. Raise `Refused` if `take` raised."""
    with subscribed(take, report) as libraries:
        yield
    failure = next((library.failure for library in libraries if library.failure), None)
    if failure:
        raise Refused("a launch cannot be run in this way: " + failure.strip().splitlines()[-1])


HIDDEN = "launch {} reads no value of the program: eager mode would replace the wrong launches {}, too"


class Replacement:
    """Replaces launches with the program of a plan, which is read once."""

    def __init__(self, file: str, report: Report) -> None:
        self.file, self.report = file, report
        with open(file, encoding="utf-8") as stream:
            plan = json.load(stream)
        for held in plan["stored"].values():
            held.update({name: LaunchJudged(**facts) for name, facts in held.items()})
        self.plan: EagerPlan = plan
        self.program = load_exported(cast(ExportedRequest, self.plan), report)
        module = self.program.module()
        for step in self.plan.get("steps", ()):
            update_program(module, step, report)
        nodes = {int(launch): names for launch, names in self.plan["nodes"].items()}
        self.graph = ProgramGraph(module, nodes)
        self.own = constants_of(module)
        self.attributes: dict[str, list[str]] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self.attributes.setdefault(str(node.target), []).append(node.name)
        self.launches: Sequence[int] = ()
        self.leaves: Sequence[Any] = ()
        self.known: dict[Known, torch.Tensor] = {}
        self.replaced: set[int] = set()

    @contextlib.contextmanager
    def during(self, launches: Sequence[int], leaves: Sequence[Any]) -> Iterator[None]:
        """Replace the launches in the body. Raise `Refused` if the call does not reach them all."""
        self.launches, self.replaced = launches, set()
        self.leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        with changing(self.take, self.report):
            yield
        missed = sorted(set(launches) - self.replaced)
        if missed:
            raise Refused("the call does not reach these launches", missed)

    def take(self, event: Event) -> bool:
        launch = int(event.launch)
        if launch not in self.launches:
            return False
        seen = {one.name.decode(): strided(one) for one in arguments(event)}
        tensors = {name: tensor for name, tensor in seen.items() if tensor is not None}
        if event.phase != AFTER:
            self.known = self._known(launch, tensors)
            return False
        wanted = {name: held for name, held in self.computed(launch).items() if name in tensors}
        places = [(one.node, one.place, one.product) for one in wanted.values()]
        hidden = self.wrong_before(launch, [place[0] for place in places])
        if hidden:
            raise Refused(HIDDEN.format(launch, hidden))
        with torch.no_grad():
            values = self.graph.values(places, self.known, self.leaves, self.report)
        for name, value in zip(wanted, values):
            overwrite(tensors[name], value)
        if wanted:
            self.replaced.add(launch)
        return False

    def wrong_before(self, launch: int, wanted: Sequence[str]) -> list[int]:
        """Other wrong launches whose nodes would be evaluated to replace this launch."""
        own = self.plan["nodes"].get(str(launch), ())
        needed = {node.name for node in self.graph.needed(wanted, self.known)}.difference(own)
        return [
            int(other)
            for other, held in self.plan["stored"].items()
            if int(other) not in (launch, *self.launches)
            and any(one.status == "wrong" for one in held.values())
            and needed.intersection(self.plan["nodes"].get(other, ()))
        ]

    def computed(self, launch: int) -> dict[str, LaunchJudged]:
        """The node that each tensor of a launch stores, unless it copies an input or constant."""
        stored = self.plan["stored"].get(str(launch), {})
        return {name: held for name, held in stored.items() if held.node in self.graph.carried}

    def _known(self, launch: int, tensors: Mapping[str, torch.Tensor]) -> dict[Known, torch.Tensor]:
        """Return copies of the tensors and constants that the launch is about to read, by what they hold.

        If it reads a view, copy the whole tensor in the layout of its writer or of the program.
        """
        found: dict[Known, torch.Tensor] = {}
        flow = self.plan["flow"].get(str(launch))
        sources = flow["sources"] if flow is not None else {}
        for name, (writer, written) in sources.items():
            held = self.plan["stored"].get(str(writer), {}).get(written)
            if name not in tensors or held is None or held.node not in self.graph.carried:
                continue
            value = laid_out(tensors[name], held.sizes, held.strides, held.offset)
            if value is not None:
                value = reshaped(value.clone(), held.shape, getattr(torch, held.dtype))
                found[held.node, held.place, held.product] = value
        for name in tensors.keys() & self.plan.get("constants", {}).keys():
            fqn = self.plan["constants"][name]
            own = self.own.get(fqn)
            if own is None or own.dtype != tensors[name].dtype:
                continue
            value = laid_out(tensors[name], own.shape, own.stride(), 0)
            if value is not None:
                value = value.clone()
                found.update({(node, 0, False): value for node in self.attributes.get(fqn, ())})
        return found
