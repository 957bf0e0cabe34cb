"""Custom operators that a package calls: their results beside what their fake functions promise.

A package reads an operator's result as the fake function described it when the model was exported, and looks
no further. The proxy executor calls the operator through the dispatcher, where a dispatch mode sees it.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .checksums import checksum
from .padded import call_padded
from .promises import difference
from .report import Report

MOST_EVENTS = 20
# Operators of torch itself: their fake functions are not the user's, and what they return is theirs.
OWN = frozenset(
    {"aten", "prims", "prim", "inductor", "quantized", "_c10d_functional", "c10d", "higher_order"}
)


class Operators(TorchDispatchMode):
    """Event `operator` for each call of a custom operator that breaks a promise.

    `repair` keeps the promises too, so that the package gets what it counts on.
    """

    def __init__(self, report: Report, repair: bool) -> None:
        super().__init__()
        self.report = report
        self.repair = repair
        self.calls = 0
        self.told = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: "Optional[dict[str, Any]]" = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in OWN:
            return func(*args, **kwargs)
        self.calls += 1
        promised = self._promised(func, args, kwargs)
        if self.repair:
            args, kwargs = _copies(func, args, kwargs)
        before = _contents(func, args, kwargs)
        result, overrun = call_padded(func, args, kwargs)
        pairs = list(zip(promised, _tensors(result)))
        self._tell(
            func,
            layouts=[found for fake, real in pairs if (found := difference(fake, real, {}))],
            mutated=[name for name, (tensor, sum_) in before.items() if checksum(tensor) != sum_],
            aliases=_aliases(func, args, kwargs, result),
            overrun=overrun,
        )
        return self._kept(result, promised) if self.repair else result

    def _promised(self, func: Any, args: Any, kwargs: "dict[str, Any]") -> "list[Any]":
        """What the fake function says for these very inputs; nothing where it fails or there is none."""
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

        def fake(leaf: Any) -> Any:
            return mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf

        try:
            given = _pytree.tree_map(fake, (tuple(args), kwargs))
            with mode:
                return _tensors(func(*given[0], **given[1]))
        except Exception as error:
            self.report.event("no_fake", op=str(func), text=str(error)[:1000])
            return []

    def _tell(self, func: Any, **broken: Any) -> None:
        if any(broken.values()) and self.told < MOST_EVENTS:
            self.told += 1
            self.report.event("operator", op=str(func), call=self.calls, repaired=self.repair, **broken)

    def _kept(self, result: Any, promised: "list[Any]") -> Any:
        """The result laid out as promised, in memory of its own."""
        leaves, tree = _pytree.tree_flatten(result)
        fakes = iter(promised)
        kept = [
            as_promised(leaf, next(fakes, None)) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        return _pytree.tree_unflatten(kept, tree)


def as_promised(real: torch.Tensor, fake: Any) -> torch.Tensor:
    """The values in the promised shape, stride, dtype and device: cut where too large, zeros where too small.

    Only a copy where nothing differs, or where the promised sizes depend on data.
    """
    if fake is None or not difference(fake, real, {}) or not _fixed(fake):
        return real.clone()
    size = 1 + sum((length - 1) * step for length, step in zip(fake.shape, fake.stride()))
    memory = torch.zeros(max(size, 0), dtype=fake.dtype, device=real.device)
    made = memory.as_strided(tuple(fake.shape), tuple(fake.stride()))
    if made.dim() == real.dim():
        shared = tuple(slice(0, min(pair)) for pair in zip(made.shape, real.shape))
        made[shared] = real[shared].to(made.dtype)
    elif made.numel() == real.numel():
        made.copy_(real.reshape(made.shape))
    return made.to(fake.device.type)


def _fixed(fake: Any) -> bool:
    return all(isinstance(number, int) for number in (*fake.shape, *fake.stride()))


def _named(func: Any, args: Any, kwargs: "dict[str, Any]") -> "list[tuple[Any, torch.Tensor]]":
    """Tensor arguments with their declarations in the operator's schema; lists of tensors leaf by leaf."""
    schema = func._schema.arguments
    given = [*zip(schema, args), *((one, kwargs[one.name]) for one in schema if one.name in kwargs)]
    return [(declared, tensor) for declared, value in given for tensor in _tensors(value)]


def _contents(func: Any, args: Any, kwargs: "dict[str, Any]") -> "dict[str, tuple[torch.Tensor, str]]":
    """Digests of the arguments that the operator declares not to write."""
    return {
        declared.name: (tensor, checksum(tensor))
        for declared, tensor in _named(func, args, kwargs)
        if declared.alias_info is None and tensor.layout is torch.strided
    }


def _aliases(func: Any, args: Any, kwargs: "dict[str, Any]", result: Any) -> "list[str]":
    """Arguments whose memory the result shares, though the operator declares a result of its own."""
    if any(one.alias_info is not None for one in func._schema.returns):
        return []
    made = {tensor.untyped_storage().data_ptr() for tensor in _tensors(result) if tensor.numel()}
    return [
        declared.name
        for declared, tensor in _named(func, args, kwargs)
        if tensor.numel() and tensor.untyped_storage().data_ptr() in made
    ]


def _copies(func: Any, args: Any, kwargs: "dict[str, Any]") -> "tuple[Any, dict[str, Any]]":
    """The arguments, with copies for those that the operator declares not to write."""
    kept = {id(tensor) for declared, tensor in _named(func, args, kwargs) if declared.alias_info is not None}

    def copy(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) and id(leaf) not in kept else leaf

    copied = _pytree.tree_map(copy, (tuple(args), kwargs))
    return copied[0], copied[1]


def _tensors(value: Any) -> "list[Any]":
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
