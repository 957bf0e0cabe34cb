"""Operators that a package runs through the proxy executor: custom ops, fallbacks without a C shim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcp_server.json_text import read_json


@dataclass(frozen=True)
class ProxyNode:
    """One node of `<hash>.wrapper.json`, in the order in which `run_impl` calls them.

    `python_op` is true for `torch.library.custom_op` (recorded from torch 2.13 on): it needs a Python
    process with the defining module imported. None means that the package does not say.
    """

    name: str
    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    python_op: bool | None


def read_proxy_nodes(text: str) -> tuple[ProxyNode, ...]:
    """Raises `ValueError` when the text is not the JSON of a node list."""
    raw = read_json(text)
    if not isinstance(raw, dict) or not isinstance(raw.get("nodes"), list):
        raise ValueError("no list of nodes")
    return tuple(_node(entry) for entry in raw["nodes"] if isinstance(entry, dict))


def _node(entry: Mapping[str, object]) -> ProxyNode:
    node = entry.get("node")
    node = node if isinstance(node, dict) else {}
    metadata = node.get("metadata")
    mark = metadata.get("torch_library_custom_op") if isinstance(metadata, dict) else None
    return ProxyNode(
        name=str(entry.get("name", "")),
        target=str(node.get("target", "")),
        inputs=_tensor_names(node.get("inputs")),
        outputs=_tensor_names(node.get("outputs")),
        python_op=None if mark is None else str(mark) == "1",
    )


def _tensor_names(raw: object) -> tuple[str, ...]:
    """Names under every `as_tensor`, at any depth (lists of tensors, optional tensors)."""
    if isinstance(raw, list):
        return tuple(name for item in raw for name in _tensor_names(item))
    if not isinstance(raw, dict):
        return ()
    tensor = raw.get("as_tensor")
    if isinstance(tensor, dict) and "name" in tensor:
        return (str(tensor["name"]),)
    return tuple(name for value in raw.values() for name in _tensor_names(value))
