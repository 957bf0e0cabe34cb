"""The exported program in float64 with roundings put in: what rounding can make of every value."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils import _pytree

from .eager_values import ExactRecorder, fakes, tensors

MOST = 0.95  # of the elements of a tensor


class NoisyRecorder(ExactRecorder):
    """The same with a rounding of each node's result to the program's own dtype put in, at random.

    `noise` holds by node how far that moves its values from those of `exact`: much further than one rounding
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
            lambda value, fake: value if _is_kept(value, shared) else self._rounded(value, fake),
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
    """How far roundings move most elements: a few may decide otherwise, which says nothing of rounding."""
    if not (exact.is_floating_point() or exact.is_complex()) or moved.shape != exact.shape:
        return 0.0
    away = (moved - exact).abs().reshape(-1)
    finite = away[torch.isfinite(away)]
    if not finite.numel():
        return 0.0
    return float(finite.kthvalue(max(1, math.ceil(MOST * finite.numel()))).values)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _is_kept(value: Any, shared: "set[int]") -> bool:
    """What is no tensor of floats in memory of its own: a view must stay one, for what is written to it."""
    floats = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return not floats or value.layout is not torch.strided or _memory(value) in shared
