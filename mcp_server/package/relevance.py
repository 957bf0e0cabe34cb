"""Which of the model lines of a fused kernel is meant: it has the lines of all its nodes."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from mcp_server.package.provenance import Frame, Provenance

INDEXES = re.compile(
    r"embedding|gather\(|scatter|index_\w+\(|take(?:_along_dim)?\(|\.put_?\(|(?<!shape)(?<![\s(=,])\[(?!\])"
)
# operators that can make an infinity or a NaN of finite values: outside their domain, or beyond the dtype
UNBOUNDED = re.compile(
    r"(?<!/)/(?!/)|\*\*|\b(?:div\w*|exp\w*|log\w*|r?sqrt|pow|float_power|reciprocal|tan|acos\w*|asin|atanh|sinh|cosh"
    r"|softmax|softmin|normalize|\w*norm|mean|std\w*|var\w*|lgamma|digamma|erfinv|xlogy|cross_entropy|inverse|"
    r"linalg|half|bfloat16|float16)\b"
)
DIVIDES = re.compile(r"//|%|\b(?:div\w*|true_divide|floor_divide|remainder|fmod|mod)\(")
_PARAMETERS = frozenset({"weight", "bias"})


def indexing_first(provenance: Provenance, indexed: Collection[str]) -> Provenance:
    """The same, with the stacks first that name the indexed constant's module, then those that index.

    `indexed`: names of constants in the model, such as `encoder.tokens.weight`. The order of equals stays.
    """
    modules = [name for constant in indexed if (name := _module(constant))]

    def distance(stack: tuple[Frame, ...]) -> int:
        own = [frame.code for frame in stack if not frame.library]
        named = any(re.search(rf"\.{re.escape(name)}\b", code) for name in modules for code in own)
        return -2 * named - bool(stack and INDEXES.search(stack[-1].code))

    return replace(provenance, stacks=tuple(sorted(provenance.stacks, key=distance)))


def unbounded_first(provenance: Provenance) -> Provenance:
    """The same, with the stacks first whose operator can make a value that is not finite of finite ones."""

    def distance(stack: tuple[Frame, ...]) -> int:
        return -bool(stack and UNBOUNDED.search(stack[-1].code))

    return replace(provenance, stacks=tuple(sorted(provenance.stacks, key=distance)))


def _module(constant: str) -> str | None:
    """The attribute by which a model's code reaches it: `tokens` of `encoder.tokens.weight`."""
    parts = [part for part in constant.split(".") if not part.isdigit()]
    names = [part for part in parts if part not in _PARAMETERS]
    return names[-1] if names else None
