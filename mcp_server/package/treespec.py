"""The pytree of a package's inputs: the one place where the caller's names survive.

`in_spec_` of the wrapper is `torch.utils._pytree.treespec_dumps` output, protocol 1 (torch 2.8-2.15):
`[1, {"type": ..., "context": "...", "children_spec": [...]}]`, a leaf having neither type nor context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.json_text import read_json

KEYED = ("builtins.dict", "collections.OrderedDict")
_PROTOCOL = 1
_DEEPEST = 200


class TreeSpecError(ValueError):
    """The text is not a tree spec that this reader knows."""


@dataclass(frozen=True)
class TreeNode:
    """A container (`type` such as `builtins.dict`) or a leaf (`type` None).

    `keys` are the dictionary keys or field names of the children, where the container has any.
    """

    type: str | None
    keys: tuple[object, ...] = ()
    children: tuple[TreeNode, ...] = ()

    @property
    def is_leaf(self) -> bool:
        return self.type is None


def read_treespec(text: str) -> TreeNode:
    """The tree that `text` describes. Raises `TreeSpecError`."""
    try:
        protocol, root = read_json(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise TreeSpecError(f"not a serialized tree spec: {error}") from error
    if protocol != _PROTOCOL:
        raise TreeSpecError(f"tree spec protocol {protocol!r} is not known")
    return _node(root, 0)


def _node(raw: object, depth: int) -> TreeNode:
    if not isinstance(raw, dict) or not isinstance(raw.get("children_spec"), list) or depth > _DEEPEST:
        raise TreeSpecError("a node of the tree spec has no list of children")
    children = tuple(_node(child, depth + 1) for child in raw["children_spec"])
    kind = raw.get("type")
    if kind is None:
        return TreeNode(None)
    keys = _keys(str(kind), raw.get("context"))
    return TreeNode(str(kind), keys if len(keys) == len(children) else (), children)


def _keys(kind: str, context: object) -> tuple[object, ...]:
    """Keys of a dictionary; other containers' contexts are not lists of keys."""
    if kind not in KEYED and kind != "collections.defaultdict":
        return ()
    try:
        keys = read_json(context) if isinstance(context, str) else context
    except ValueError:
        return ()
    if isinstance(keys, dict):
        keys = keys.get("dict_context")
    return tuple(keys) if isinstance(keys, list) else ()


def leaf_paths(root: TreeNode) -> tuple[str, ...]:
    """How the caller reaches each leaf, in order: `args[0]['user']`, `kwargs['mask']`.

    The root of an input spec is the tuple (positional arguments, keyword arguments).
    """
    if root.type == "builtins.tuple" and len(root.children) == 2:
        args, kwargs = root.children
        return (*_paths(args, "args"), *_paths(kwargs, "kwargs"))
    return tuple(_paths(root, ""))


def output_paths(root: TreeNode) -> tuple[str, ...]:
    """How the caller reaches each output: `output`, `output[1]`, `output['score']`."""
    return tuple(_paths(root, "output"))


def _paths(node: TreeNode, prefix: str) -> Iterator[str]:
    if node.is_leaf:
        yield prefix
        return
    keys = node.keys or range(len(node.children))
    for key, child in zip(keys, node.children, strict=True):
        yield from _paths(child, f"{prefix}[{key!r}]")
