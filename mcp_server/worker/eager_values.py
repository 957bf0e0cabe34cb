"""The exported program node by node in eager mode, and what rounding can make of every value."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch.utils import _pytree

from .report import Report

PRODUCTS = ("mm", "linear", "matmul", "conv", "attention")  # in the names of operators that sum products
BIAS = {"linear": (2, (0, 1)), "addmm": (0, (1, 2))}  # operator: place of its bias, places of the factors


class Recorder(torch.fx.Interpreter):
    """Records results of chosen nodes, up to `cap` bytes. `kept` maps a node to its (tensor, terms)."""

    def __init__(self, module: Any, wanted: Optional[frozenset[str]], cap: int, report: Report) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.left = cap
        self.report = report
        self.kept: dict[str, list[tuple[torch.Tensor, float]]] = {}
        # The longest sum among what a node, and what each output, is computed from.
        self.longest: dict[torch.fx.Node, float] = {}
        self.ends: list[float] = []
        self.left_out = 0

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "call_module" and "guard" in str(n.target):
            return self._guard(n)
        result = self.evaluate(n)
        self._measure(n, result)
        if n.op == "call_function" and (self.wanted is None or n.name in self.wanted):
            self._keep(n, result)
        return result

    def evaluate(self, node: torch.fx.Node) -> Any:
        return super().run_node(node)

    def _measure(self, node: torch.fx.Node, result: Any) -> None:
        before = max((self.longest.get(given, 1.0) for given in node.all_input_nodes), default=1.0)
        own = self._terms(node, result) if node.op == "call_function" else 1.0
        self.longest[node] = max(before, own)
        if node.op == "output":
            leaves = [leaf for leaf in _pytree.tree_leaves(node.args) if isinstance(leaf, torch.fx.Node)]
            self.ends = [self.longest[leaf] for leaf in leaves if isinstance(self.env[leaf], torch.Tensor)]

    def _guard(self, node: torch.fx.Node) -> Any:
        """Report a guard that these inputs break and continue, as AOTInductor does, which drops guards."""
        try:
            return super().run_node(node)
        except Exception as error:
            self.report.event("guard_failed", text=str(error)[:2000])
            return None

    def _keep(self, node: torch.fx.Node, result: Any) -> None:
        terms = self._terms(node, result)
        for tensor in [*tensors(result), *self._without_bias(node)]:
            size = tensor.numel() * tensor.element_size()
            if size > self.left:
                self.left_out += 1
                continue
            self.left -= size
            # A copy, since a later node may mutate it.
            self.kept.setdefault(node.name, []).append((tensor.detach().clone(), terms))

    def _terms(self, node: torch.fx.Node, result: Any) -> float:
        """How many numbers each element of the result sums up."""
        inputs = tensors(self.fetch_args_kwargs_from_env(node))
        made = tensors(result)
        if not inputs or not made:
            return 1.0
        first, name = inputs[0], str(node.target)
        if "cum" in name:
            return float(max(first.shape, default=1))
        if "conv" in name and len(inputs) > 1:
            return inputs[1].numel() / max(inputs[1].shape[0], 1)
        if any(word in name for word in PRODUCTS) and first.dim():
            return float(max(tensor.shape[-1] for tensor in inputs if tensor.dim()))
        return max(1.0, first.numel() / max(made[0].numel(), 1))

    def _without_bias(self, node: torch.fx.Node) -> list[torch.Tensor]:
        """The product alone: Inductor may add the bias in a later kernel."""
        place, factors = BIAS.get(_operator(node), (0, ()))
        args = self.fetch_args_kwargs_from_env(node)[0]
        if not factors or len(args) <= max(place, *factors) or len(args) > 3:
            return []
        left, right = (args[i] for i in factors)
        return [left @ (right.t() if place == 2 else right)]


class ExactRecorder(Recorder):
    """The reference: every floating-point value is widened to float64.

    Parameters are widened for one operator at a time, to save memory. Operators that are not torch's own get
    their original dtypes, since a user's kernel may support no other.
    """

    def _measure(self, node: torch.fx.Node, result: Any) -> None:
        """Nothing: the eager run measures the terms."""

    def evaluate(self, node: torch.fx.Node) -> Any:
        if "_assert_tensor_metadata" in str(node.target):
            return None  # it checks for the original dtype
        if node.op == "call_function" and not _common(node):
            return _pytree.tree_map(widened, self._natively(node))
        if node.op == "get_attr" and isinstance(self.fetch_attr(str(node.target)), torch.nn.Parameter):
            return torch.fx.Interpreter.run_node(self, node)
        return _pytree.tree_map(widened, torch.fx.Interpreter.run_node(self, node))

    def fetch_args_kwargs_from_env(self, n: torch.fx.Node) -> Any:
        return _pytree.tree_map(widened, super().fetch_args_kwargs_from_env(n))

    def _natively(self, node: torch.fx.Node) -> Any:
        def fetch(given: torch.fx.Node) -> Any:
            return _pytree.tree_map(
                lambda value, fake: _narrowed(value, fake), self.env[given], fakes(given, self.env[given])
            )

        args = torch.fx.node.map_arg(node.args, fetch)
        kwargs = torch.fx.node.map_arg(node.kwargs, fetch)
        return self.call_function(node.target, args, kwargs)


def _operator(node: torch.fx.Node) -> str:
    return str(node.target).replace("aten.", "", 1).split(".")[0]


def _common(node: torch.fx.Node) -> bool:
    """Whether the node is one of torch's operators, or Python's own."""
    name = str(node.target)
    return name.startswith("aten.") or not isinstance(node.target, torch._ops.OperatorBase)


def fakes(node: torch.fx.Node, value: Any) -> Any:
    """The fake results of a node if they have the structure of `value`, else `value`."""
    fake = node.meta.get("val")
    same = _pytree.tree_structure(fake) == _pytree.tree_structure(value)
    return fake if fake is not None and same else value


def _narrowed(value: Any, fake: Any) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(fake, torch.Tensor):
        return value.to(fake.dtype)
    return value


def widened(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_complex():
        return value.to(torch.complex128)
    return value.to(torch.float64) if value.is_floating_point() else value


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


MOST = 0.95  # of the elements of a tensor


class NoisyRecorder(ExactRecorder):
    """The reference with a random rounding error of the original dtype added to each node's result.

    `noise` maps a node to how far that moves its values from those of `exact`: much further than one rounding
    where large terms cancel, or after many nodes.
    """

    def __init__(self, module: Any, exact: ExactRecorder) -> None:
        super().__init__(module, frozenset(exact.kept), 0, exact.report)
        self.exact = exact
        self.noise: dict[str, list[float]] = {}
        self.chance: dict[torch.device, torch.Generator] = {}

    def evaluate(self, node: torch.fx.Node) -> Any:
        result = super().evaluate(node)
        if node.op != "call_function":
            return result
        shared = {_memory(given) for given in tensors(self.fetch_args_kwargs_from_env(node))}
        return _pytree.tree_map(
            lambda value, fake: value if _not_perturbed(value, shared) else self._rounded(value, fake),
            result,
            fakes(node, result),
        )

    def _rounded(self, value: torch.Tensor, fake: Any) -> torch.Tensor:
        if not fake.dtype.is_floating_point and not fake.dtype.is_complex:
            return value
        if value.device not in self.chance:
            self.chance[value.device] = torch.Generator(value.device).manual_seed(0)
        chance = torch.rand(
            value.shape, generator=self.chance[value.device], dtype=torch.float64, device=value.device
        )
        return value * (1 + torch.finfo(fake.dtype).eps * (chance - 0.5))

    def _keep(self, node: torch.fx.Node, result: Any) -> None:
        exact = [tensor for tensor, _ in self.exact.kept[node.name]]
        moved = [*tensors(result), *self._without_bias(node)]
        if len(moved) == len(exact):
            self.noise[node.name] = [spread(*pair) for pair in zip(moved, exact)]


def spread(moved: torch.Tensor, exact: torch.Tensor) -> float:
    """How far rounding moves `MOST` of the elements. The others may be flipped decisions, not rounding."""
    if not (exact.is_floating_point() or exact.is_complex()) or moved.shape != exact.shape:
        return 0.0
    away = (moved - exact).abs().reshape(-1)
    finite = away[torch.isfinite(away)]
    if not finite.numel():
        return 0.0
    return float(finite.kthvalue(max(1, math.ceil(MOST * finite.numel()))).values)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _not_perturbed(value: Any, shared: "set[int]") -> bool:
    """True for values not to perturb: non-float values, and views, which must keep sharing memory."""
    floats = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return not floats or value.layout is not torch.strided or _memory(value) in shared
