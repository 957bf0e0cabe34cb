"""The inputs of a call as they are compared with a package: from specs, or as the worker describes a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_server.model import TensorSpec
from mcp_server.package.mismatch import GivenTensor
from mcp_server.package.signature import Signature
from mcp_server.package.structure import calling_order

_ARGUMENT = re.compile(r"\[(0|1)\](\[.*)")


@dataclass(frozen=True)
class Given:
    """Flat tensors in calling order, the paths of all leaves, and what is worth saying about the others."""

    tensors: tuple[GivenTensor, ...]
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def from_specs(specs: Sequence[TensorSpec]) -> Given:
    """Specs are flat tensors in the order of the exported call."""
    return Given(tuple(_from_spec(spec) for spec in specs))


def _from_spec(spec: TensorSpec) -> GivenTensor:
    stride = tuple(spec.stride) if spec.stride is not None else None
    return GivenTensor(spec.dtype.removeprefix("torch."), tuple(spec.shape), stride, spec.device)


def from_leaves(leaves: Sequence[Mapping[str, Any]], signature: Signature | None) -> Given:
    """Leaves of the worker's `describe_inputs`, brought into the order in which the package takes them."""
    paths = [_argument_path(str(leaf.get("path", ""))) for leaf in leaves]
    order = calling_order(signature, paths) if signature is not None else range(len(leaves))
    tensors, notes = [], []
    for index in order:
        leaf = leaves[index]
        if leaf.get("kind") == "tensor" and leaf.get("shape") is not None:
            tensors.append(_from_leaf(leaf, paths[index]))
        else:
            notes.append(
                f"{paths[index]} is no plain tensor ({leaf.get('layout') or leaf.get('kind')}); a package "
                "drops it and computes with what was exported"
            )
    return Given(tuple(tensors), tuple(paths), tuple(notes))


def _from_leaf(leaf: Mapping[str, Any], path: str) -> GivenTensor:
    stride = leaf.get("stride")
    return GivenTensor(
        dtype=str(leaf["dtype"]),
        shape=tuple(leaf["shape"]),
        stride=tuple(stride) if stride is not None else None,
        device=str(leaf.get("device", "cpu")),
        path=path,
    )


def _argument_path(path: str) -> str:
    """`[0][1]['x']`, a key path in (args, kwargs), as `args[1]['x']`; a captured flat list stays `[1]`."""
    match = _ARGUMENT.fullmatch(path)
    return f"{('args', 'kwargs')[int(match[1])]}{match[2]}" if match else path
