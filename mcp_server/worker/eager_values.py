"""The exported program node by node, in its own dtypes and once more in float64."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils import _pytree

from .checksums import checksum
from .closeness import Expected
from .report import Report

PRODUCTS = ("mm", "linear", "matmul", "conv", "attention")  # in the names of operators that sum products
BIAS = {"linear": (2, (0, 1)), "addmm": (0, (1, 2))}  # operator: place of its bias, places of the factors


class Recorder(torch.fx.Interpreter):
    """Keeps what chosen nodes return, until `cap` bytes are reached; `kept` holds (tensor, terms) by node."""

    def __init__(self, module: Any, wanted: Optional[frozenset[str]], cap: int, report: Report) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.left = cap
        self.report = report
        self.kept: dict[str, list[tuple[torch.Tensor, float]]] = {}
        self.left_out = 0

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "call_module" and "guard" in str(n.target):
            return self._guard(n)
        result = self.evaluate(n)
        if n.op == "call_function" and (self.wanted is None or n.name in self.wanted):
            self._keep(n, result)
        return result

    def evaluate(self, node: torch.fx.Node) -> Any:
        return super().run_node(node)

    def _guard(self, node: torch.fx.Node) -> Any:
        """A guard that these inputs break is told; AOTInductor drops it, and so goes on."""
        try:
            return super().run_node(node)
        except Exception as error:
            self.report.event("guard_failed", text=str(error)[:2000])
            return None

    def _keep(self, node: torch.fx.Node, result: Any) -> None:
        terms = self._terms(node, result)
        for tensor in [*_tensors(result), *self._without_bias(node)]:
            size = tensor.numel() * tensor.element_size()
            if size > self.left:
                self.left_out += 1
                continue
            self.left -= size
            # A copy: a later node may change it in place.
            self.kept.setdefault(node.name, []).append((tensor.detach().clone(), terms))

    def _terms(self, node: torch.fx.Node, result: Any) -> float:
        """How many numbers each element of the result sums up."""
        given = _tensors(self.fetch_args_kwargs_from_env(node))
        made = _tensors(result)
        if not given or not made:
            return 1.0
        first, name = given[0], str(node.target)
        if "conv" in name and len(given) > 1:
            return given[1].numel() / max(given[1].shape[0], 1)
        if any(word in name for word in PRODUCTS) and first.dim():
            return float(max(tensor.shape[-1] for tensor in given if tensor.dim()))
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
    """The same with every floating value widened to float64, as far as operators take it.

    Parameters are widened where they are used, those of one operator at a time.
    Operators that are not torch's own get the dtypes that they were exported for: a kernel of the user's may
    take no other.
    """

    def evaluate(self, node: torch.fx.Node) -> Any:
        if node.op == "call_function" and not _common(node):
            return _pytree.tree_map(_widened, self._natively(node))
        if node.op == "get_attr" and isinstance(self.fetch_attr(str(node.target)), torch.nn.Parameter):
            return torch.fx.Interpreter.run_node(self, node)
        return _pytree.tree_map(_widened, torch.fx.Interpreter.run_node(self, node))

    def fetch_args_kwargs_from_env(self, n: torch.fx.Node) -> Any:
        return _pytree.tree_map(_widened, super().fetch_args_kwargs_from_env(n))

    def _natively(self, node: torch.fx.Node) -> Any:
        def fetch(given: torch.fx.Node) -> Any:
            return _pytree.tree_map(
                lambda value, fake: _narrowed(value, fake), self.env[given], _fakes(given, self.env[given])
            )

        args = torch.fx.node.map_arg(node.args, fetch)
        kwargs = torch.fx.node.map_arg(node.kwargs, fetch)
        return self.call_function(node.target, args, kwargs)


def expectations(
    module: Any, leaves: list[Any], wanted: Optional[frozenset[str]], cap: int, report: Report
) -> tuple[dict[str, list[Expected]], Any, Any]:
    """By node what eager computed, then the outputs of eager and of float64 (None where that failed).

    Event `eager_again` tells whether a second eager run gave the same outputs.
    """
    report.event("running_eager")
    eager = Recorder(module, wanted, cap, report)
    result = _run(eager, leaves)
    again = _run(Recorder(module, frozenset(), 0, report), leaves)
    report.event("eager_again", same=_marks(result) == _marks(again))
    report.event("running_float64", nodes=len(eager.kept), left_out=eager.left_out)
    exact = ExactRecorder(module, wanted, cap, report)
    precise = _tried(exact, leaves, report)
    return _joined(eager.kept, exact.kept), result, precise


def _run(recorder: Recorder, leaves: list[Any]) -> Any:
    """One run on copies of the inputs; buffers that the program changes are put back."""
    buffers = [(buffer, buffer.clone()) for buffer in recorder.module.buffers()]
    with torch.no_grad():
        outputs = _copied(recorder.run(*_copied(leaves), enable_io_processing=False))
        for buffer, value in buffers:
            buffer.copy_(value)
    return outputs


def _tried(exact: ExactRecorder, leaves: list[Any], report: Report) -> Any:
    try:
        return _run(exact, [_widened(leaf) for leaf in leaves])
    except Exception as error:
        report.event("no_float64", text="{}: {}".format(type(error).__name__, error)[:500])
        return None


def _marks(result: Any) -> list[str]:
    return [checksum(tensor) for tensor in _tensors(result)]


def _joined(
    eager: dict[str, list[tuple[torch.Tensor, float]]], exact: dict[str, list[tuple[torch.Tensor, float]]]
) -> dict[str, list[Expected]]:
    found: dict[str, list[Expected]] = {}
    for node, values in eager.items():
        precise = exact.get(node, [])
        fits = len(precise) == len(values)
        for place, (tensor, terms) in enumerate(values):
            found.setdefault(node, []).append(
                Expected(node, tensor, precise[place][0] if fits else None, terms)
            )
    return found


def _operator(node: torch.fx.Node) -> str:
    return str(node.target).replace("aten.", "", 1).split(".")[0]


def _common(node: torch.fx.Node) -> bool:
    """Whether the node is one of torch's operators, or Python's own."""
    name = str(node.target)
    return name.startswith("aten.") or not isinstance(node.target, torch._ops.OperatorBase)


def _fakes(node: torch.fx.Node, value: Any) -> Any:
    """The fake results of a node in the structure of the real ones; the real ones where none are known."""
    fake = node.meta.get("val")
    same = _pytree.tree_structure(fake) == _pytree.tree_structure(value)
    return fake if fake is not None and same else value


def _narrowed(value: Any, fake: Any) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(fake, torch.Tensor):
        return value.to(fake.dtype)
    return value


def _widened(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_complex():
        return value.to(torch.complex128)
    return value.to(torch.float64) if value.is_floating_point() else value


def _copied(tree: Any) -> Any:
    """The same with tensors of its own."""
    return _pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
