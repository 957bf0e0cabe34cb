"""The compiled signature: inputs, dimensions, symbols, outputs, and the pytree with the caller's names.

`in_spec_` of the wrapper is `torch.utils._pytree.treespec_dumps` output, protocol 1 (torch 2.8-2.15):
`[1, {"type": ..., "context": "...", "children_spec": [...]}]`, a leaf having neither type nor context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.errors import read_json

KEYED = ("builtins.dict", "collections.OrderedDict")
_PROTOCOL = 1
_MAX_DEPTH = 200


class TreeSpecError(ValueError):
    """The text is not a known tree spec."""


@dataclass(frozen=True)
class TreeNode:
    """A container (`type` such as `builtins.dict`) or a leaf (`type` None).

    `keys` are the dictionary keys or field names of the children, if any.
    """

    type: str | None
    keys: tuple[object, ...] = ()
    children: tuple[TreeNode, ...] = ()

    @property
    def is_leaf(self) -> bool:
        return self.type is None


def read_treespec(text: str) -> TreeNode:
    """Parse a tree spec. Raises `TreeSpecError`."""
    try:
        protocol, root = read_json(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise TreeSpecError(f"not a serialized tree spec: {error}") from error
    if protocol != _PROTOCOL:
        raise TreeSpecError(f"tree spec protocol {protocol!r} is not known")
    return _node(root, 0)


def _node(raw: object, depth: int) -> TreeNode:
    if not isinstance(raw, dict) or not isinstance(raw.get("children_spec"), list) or depth > _MAX_DEPTH:
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
    """The caller's expression for each leaf, in order: `args[0]['user']`, `kwargs['mask']`.

    The root of an input spec is the tuple (positional arguments, keyword arguments).
    """
    if root.type == "builtins.tuple" and len(root.children) == 2:
        args, kwargs = root.children
        return (*_paths(args, "args"), *_paths(kwargs, "kwargs"))
    return tuple(_paths(root, ""))


def output_paths(root: TreeNode) -> tuple[str, ...]:
    """The caller's expression for each output: `output`, `output[1]`, `output['score']`."""
    return tuple(_paths(root, "output"))


def _paths(node: TreeNode, prefix: str) -> Iterator[str]:
    if node.is_leaf:
        yield prefix
        return
    keys = node.keys or range(len(node.children))
    for key, child in zip(keys, node.children, strict=True):
        yield from _paths(child, f"{prefix}[{key!r}]")


@dataclass(frozen=True)
class CompiledDim:
    """One dimension: a static `size` in elements, or an `expression` with the compiled range.

    `expression` is None if the wrapper does not name the symbol of a dynamic dimension (torch <= 2.12 names a
    symbol only at its first use). `lower` and `upper` are inclusive, None if unchecked. They are the range of
    code generation, which may be tighter than the user's.
    """

    index: int
    size: int | None = None
    expression: str | None = None
    lower: int | None = None
    upper: int | None = None

    def __str__(self) -> str:
        return str(self.size) if self.size is not None else self.expression or "?"


@dataclass(frozen=True)
class CompiledInput:
    """One flat input tensor. `name` is from the wrapper, `path` from the caller (None if unknown).

    `strides` are in elements; a symbolic stride is an expression as text, or None.
    """

    index: int
    name: str
    path: str | None = None
    dtype: str | None = None
    dims: tuple[CompiledDim, ...] = ()
    strides: tuple[int | str | None, ...] = ()
    device_type: str | None = None

    @property
    def label(self) -> str:
        """The display name: with the caller's path if known."""
        return f"input {self.index} ({self.path or self.name})"

    @property
    def described(self) -> bool:
        """Whether the input's check was found, so that `dims` has the full rank."""
        return self.dtype is not None

    @property
    def shape(self) -> str:
        return f"[{', '.join(str(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class SymbolDefinition:
    """`symbol` is read from the size (or stride) of input `name` at `dim`.

    `solution` is the C++ expression over `<name>_size_<dim>` if the dimension is not a bare symbol.
    """

    symbol: str
    name: str
    what: str
    dim: int
    solution: str | None = None


@dataclass(frozen=True)
class Signature:
    """Inputs, outputs and symbols of a model.

    `problems` lists unread parts with their lines, `notes` facts that the wrapper does not record. `known`:
    the wrapper lists as many inputs as it declares; otherwise `inputs` may be incomplete.
    """

    inputs: tuple[CompiledInput, ...] = ()
    output_count: int | None = None
    output_paths: tuple[str, ...] = ()
    in_spec: TreeNode | None = None
    out_spec: TreeNode | None = None
    symbols: tuple[SymbolDefinition, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    known: bool = True

    def definition(self, name: str, dim: int) -> SymbolDefinition | None:
        """The symbol that is read from the size of input `name` at `dim`."""
        return next(
            (s for s in self.symbols if (s.name, s.what, s.dim) == (name, "size", dim)),
            None,
        )
