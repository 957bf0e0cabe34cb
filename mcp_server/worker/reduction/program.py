"""An exported program as one flat graph whose placeholders have real values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree

from ..exported import arguments, load_exported
from ..failures import Refused
from ..report import Report

WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class Program:
    """`values` and `weights` are by the names of placeholders; `ranges` bound the size symbols by name.

    `inputs` are the leaves of the call.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    values: dict[str, Any]
    weights: frozenset[str]
    ranges: dict[str, tuple[Optional[int], Optional[int]]]

    @property
    def nodes(self) -> list[torch.fx.Node]:
        return list(self.module.graph.nodes)

    @property
    def units(self) -> list[str]:
        """The nodes that compute tensors: what a reduction keeps or leaves out."""
        return [node.name for node in self.nodes if is_unit(node)]


def load_program(request: dict[str, Any], report: Report) -> Program:
    """The program of `request["exported"]` with the asked inputs; raises `Refused` as `flatten_program`."""
    exported = load_exported(request, report)
    report.event("reading_inputs")
    return flatten_program(exported, *arguments(exported, request))


def flatten_program(exported: Any, args: Any, kwargs: Any) -> Program:
    """A program with arguments, without operators that change a tensor in place.

    Raises `Refused` for a program that takes objects other than tensors and plain values.
    """
    flat = _flat(exported, args, kwargs)
    if any(_mutates(node) for node in exported.graph.nodes):
        exported = exported.run_decompositions({})  # keeps the operators, makes them functional
    values, weights = _values(exported, flat)
    ranges = {str(s): (_int(r.lower), _int(r.upper)) for s, r in exported.range_constraints.items()}
    return Program(exported.graph_module, tuple(flat), values, weights, ranges)


def _flat(exported: Any, args: Any, kwargs: Any) -> list[Any]:
    from torch.export._tree_utils import reorder_kwargs

    return list(_pytree.tree_leaves((args, reorder_kwargs(kwargs, exported.call_spec.in_spec))))


def _values(exported: Any, flat: list[Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """What each placeholder stands for, and which of them are weights."""
    given = iter(flat)
    values: dict[str, Any] = {}
    weights = set()
    held = {**exported.constants, **exported.state_dict}
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            values[spec.arg.name] = next(given, None)
        elif spec.kind in WEIGHTS:
            values[spec.arg.name] = held[spec.target].detach()
            weights.add(spec.arg.name)
        else:
            raise Refused("the program takes what a reproduction cannot hold", str(spec.kind), "tensors")
    return values, frozenset(weights)


def _int(bound: Any) -> Optional[int]:
    """A bound of a range; None for infinity."""
    try:
        return int(bound)
    except (TypeError, ValueError, OverflowError):
        return None


def _mutates(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def is_unit(node: torch.fx.Node) -> bool:
    """Whether the node computes a tensor, or several; picking one of several belongs to their maker."""
    return node.op == "call_function" and holds_tensor(node.meta.get("val")) and maker(node) is None


def holds_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in _pytree.tree_leaves(value))


def maker(node: torch.fx.Node) -> Optional[torch.fx.Node]:
    """The node with several results of which this one picks one; None for any other node."""
    picks = node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
    source = node.args[0] if picks else None
    several = isinstance(source, torch.fx.Node) and isinstance(source.meta.get("val"), (list, tuple))
    return source if several else None
