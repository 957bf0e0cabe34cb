"""Which operators of the model the compiler was at when it failed."""

from __future__ import annotations

import traceback
from types import FrameType
from typing import Any, Iterator

import torch

MOST = 4
TEXT = 4000  # characters of one stack
NAMES = ("self", "n", "node")  # of what a function of the compiler works on (torch 2.8-2.15)


def stopped_at(error: BaseException) -> list[dict[str, str]]:
    """The operators of the innermost frame that works on some, each with the lines of the model behind it."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        found = {id(node): node for node in _nodes(frame)}
        if found:
            return [
                {"operator": str(node.target), "stack": str(node.meta.get("stack_trace") or "")[-TEXT:]}
                for node in list(found.values())[:MOST]
            ]
    return []


def _nodes(frame: FrameType) -> Iterator[Any]:
    for name in NAMES:
        yield from _behind(frame.f_locals.get(name))


def _behind(value: Any) -> Iterator[Any]:
    """The calls of operators that it is, or was made of: a node of a graph, of Inductor's IR or schedule."""
    if isinstance(value, torch.fx.Node):
        origins: Any = [value]
    elif type(value).__module__ == "torch._inductor.scheduler":
        origins = getattr(getattr(value, "node", None), "origins", ())
    elif type(value).__module__ == "torch._inductor.ir":
        origins = getattr(value, "origins", ())
    else:
        origins = ()
    yield from (
        node for node in origins or () if isinstance(node, torch.fx.Node) and node.op == "call_function"
    )
