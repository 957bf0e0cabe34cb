"""Which node of the exported program a launch stores where, and a node's value from values of other nodes.

A launch carries out several nodes and stores few of them. Who reads a tensor tells which: a tensor holds a
node where every reader carries out a user of that node, and not the node itself.

`Judge` judges every launch on right inputs: after each launch eager values of what it wrote are copied in.
"""

from __future__ import annotations

import contextlib
import operator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Collection, Iterator, Mapping, Optional, Sequence, TypeVar

import torch
from torch.fx import Node

from .eager_values import BIAS, PRODUCTS, Expected, Recorder, measure, operator_name
from .events import Closeness, JudgedOutputs, LaunchJudged
from .probes import Event, Written, arguments, written
from .protocol import LaunchFlow
from .report import Report
from .tensors import dtype_name, only_tensors

Known = tuple[str, int, bool]  # a value: its node, its place, whether it is the product without the bias
RETURNED = -1  # among the readers of a tensor: the caller
Value = TypeVar("Value")  # a tensor, or what stands for one


@dataclass(frozen=True)
class Stored:
    """What a tensor holds: number `place` of the tensors of a node; with `product`, without its bias."""

    node: str
    place: int
    want: Expected
    product: bool = False


class ProgramGraph:
    """The nodes of an exported program, by the launches that carry them out (`nodes`).

    Nodes without a launch (views, for the most part) pass values on. After an operator that mutates one of
    its arguments, that argument stands for the operator's result.
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
        """The nodes with a launch that take the value of a node, also through views, and `output`."""
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
        return {name: Expected(name, value.detach(), None, 1.0) for name, value in tensors.items()}

    def candidates(
        self, launch: int, expected: Mapping[str, list[Expected]], read: Collection[str]
    ) -> Iterator[Stored]:
        """What a launch may store, as far as its value is known. `read`: names of constants that it reads.

        Of a product with a bias it is the whole where the launch itself reads the bias.
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
        """Inputs and constants, broadcast to a shape, that a launch copies for itself or its readers."""
        names = {name for launch in launches for name in self.nodes.get(launch, ())}
        taken = {one.name for name in names if name in self.by_name for one in self.takes[self.by_name[name]]}
        for name in sorted(taken & own.keys()):
            with contextlib.suppress(RuntimeError):  # another shape
                yield Stored(name, 0, replace(own[name], eager=own[name].eager.expand(tuple(shape))))

    def taken(self, stored: Stored, readers: Sequence[int]) -> bool:
        """Whether all of these launches carry out users of the node; of a product, the node itself."""
        uses = self.uses(stored.node)
        wanted = {stored.node} if stored.product else uses
        carried = [{"output"} if one == RETURNED else self.nodes.get(one, frozenset()) for one in readers]
        return all(wanted & names for names in carried)

    def whole(self, stored: Stored, launch: int, readers: Sequence[int], *, library: bool) -> bool:
        """Whether the launch makes the whole value: no reader carries out the node, too.

        A call of a library makes the whole value of its only node.
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
        """Values of nodes (name, place, product) in eager mode, of `known` values and else of the inputs.

        To a known product only the bias is added.
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
            # What an operator mutates is not to be a buffer of the program.
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
        """The nodes to evaluate for those wanted, beside the known ones; for a known product, its bias.

        Those of `also` are known, too.
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
        """Known values by node, except products; what an operator mutates has its result."""
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


def bias_of(node: Node) -> Optional[Node]:
    """The bias of a product, where it is a constant of the program."""
    place, factors = BIAS.get(operator_name(node), (0, ()))
    bias = node.args[place] if factors and len(node.args) > place else None
    return bias if isinstance(bias, Node) and bias.op == "get_attr" else None


def _mutated(node: Node) -> list[Node]:
    """The arguments that an operator mutates, by its schema."""
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
    """The node itself, or of one with several results those that take this one."""
    if not isinstance(node.meta.get("val"), (tuple, list)):
        return [node]
    return [user for user in node.users if user.target is operator.getitem and user.args[1] == place]


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one shape is the other with neighbouring dimensions joined. Floats are not like integers."""
    if one.is_floating_point() != other.is_floating_point() or one.numel() != other.numel():
        return False
    shapes = [[size for size in each.shape if size != 1] for each in (one, other)]
    short, left = sorted(shapes, key=len)
    for size in short:
        joined = 1
        while left and joined < size:
            joined *= left.pop(0)
        if joined != size:
            return False
    return not left


def reshaped(value: torch.Tensor, shape: Sequence[int], dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """The same numbers in logical order."""
    return value.detach().to(dtype or value.dtype).reshape(tuple(shape))


@dataclass(frozen=True)
class Judged:
    """What a tensor holds, with the facts of `measure`; or why that is not known."""

    stored: Optional[Stored] = None
    facts: Optional[Closeness] = None
    why: str = ""


@dataclass
class Judge:
    """Subscriber of one call; event `launch_judged` (`JudgedTensor`) for each tensor that another step reads.

    `own` are the inputs and constants by node, `constants` names those of the package as the program does.
    Values are copied in after every launch.
    """

    graph: ProgramGraph
    expected: Mapping[str, list[Expected]]
    own: Mapping[str, Expected]
    constants: Mapping[str, str]
    flow: Mapping[str, LaunchFlow]
    factor: float
    report: Report
    copies: dict[str, str] = field(default_factory=dict)  # by tensor, what it holds

    def take(self, event: Event) -> bool:
        flow = self.flow.get(str(int(event.launch)))
        if flow is None:
            return False
        for place, tensor in written(event):
            readers, maybe = (users.get(place.name, []) for users in (flow["readers"], flow["maybe"]))
            judged = self.judge(event, tensor, readers or maybe)
            if not readers and (judged.stored is None or not maybe):
                continue  # nothing reads it: memory that the kernel works in
            if judged.stored is not None:
                self.copies[place.name] = str(self.graph.by_name[judged.stored.node].target)
                overwrite(tensor, judged.stored.want.eager)
            self.report.event(_reported(place, judged, tensor))
        return False

    def outputs(self, got: Sequence[torch.Tensor], wanted: Sequence[Expected]) -> None:
        """Event `judged_outputs`: whether the call with right values in place of all wrong ones is right."""
        pairs = list(zip(got, wanted))
        shaped = len(got) == len(wanted) and all(have.shape == want.eager.shape for have, want in pairs)
        right = shaped and all(measure(have, want, self.factor).within for have, want in pairs)
        self.report.event(JudgedOutputs(right))

    def judge(self, event: Event, tensor: torch.Tensor, readers: Sequence[int]) -> Judged:
        """What the tensor holds with the facts of `measure`, else why that is not known."""
        launch = int(event.launch)
        names = [argument.name.decode() for argument in arguments(event)]
        read = {known.get(name, "") for name in names for known in (self.constants, self.copies)}
        candidates = list(self.graph.candidates(launch, self.expected, read))
        shaped = [one for one in candidates if alike(tensor, one.want.eager)]
        taken = [one for one in shaped if self.graph.taken(one, readers)]
        library = self.flow[str(launch)]["library"]
        whole = [one for one in taken if self.graph.whole(one, launch, readers, library=library)]
        found = self._matching(tensor, whole) or self._matching(tensor, taken)
        if found is None and len(whole) == 1:
            return Judged(whole[0], measure(tensor, whole[0].want, self.factor))
        same_size = [one for one in candidates if one.want.eager.numel() == tensor.numel()]
        copied = self.graph.copied([launch, *readers], self.own, tensor.shape)
        found = found or self._matching(tensor, [*shaped, *same_size, *copied])
        if found is not None:
            return found
        if not self.graph.nodes.get(launch):
            return Judged(why="the package names no node for it")
        if not candidates:
            return Judged(why="no value of its nodes was kept")
        return Judged(why="several nodes fit" if taken else "no node of its shape is what its readers take")

    def _matching(self, tensor: torch.Tensor, candidates: Sequence[Stored]) -> Optional[Judged]:
        """The nearest of those whose value the tensor has."""
        measured = [(measure(tensor, one.want, self.factor), one) for one in candidates]
        within = [pair for pair in measured if pair[0].within]
        best = min(within, key=lambda pair: float(pair[0].excess or 0.0), default=None)
        return None if best is None else Judged(best[1], best[0])


def _reported(place: Written, judged: Judged, tensor: torch.Tensor) -> LaunchJudged:
    """What is known of a tensor: right, wrong or unjudged."""
    stored, measured = judged.stored, judged.facts
    if stored is None or measured is None:
        return LaunchJudged(*place, "unjudged", judged.why)
    eager = stored.want.eager
    products = any(word in stored.node for word in PRODUCTS)
    tf32 = products and tensor.is_cuda and tensor.dtype == torch.float32 and measured.within_tf32
    return LaunchJudged(
        *place,
        status="right" if measured.within else "wrong",
        node=stored.node,
        place=stored.place,
        product=stored.product,
        shape=list(eager.shape),
        dtype=dtype_name(eager.dtype),
        sizes=list(tensor.shape),
        strides=list(tensor.stride()),
        offset=tensor.storage_offset(),
        compared=measured,
        tf32=bool(tf32),
    )


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy the numbers into the memory of a launch, and wait for that."""
    tensor.copy_(reshaped(value, tensor.shape))
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
