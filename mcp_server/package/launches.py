"""Launches: the calls of a wrapper that compute something, with every argument resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mcp_server.package.expressions import View
from mcp_server.package.shims import Role
from mcp_server.package.statements import Block

LaunchKind = Literal["triton", "user_triton", "cpp", "extern", "fallback_shim", "proxy_executor"]
ArgumentKind = Literal[
    "buffer", "input", "constant", "symbol", "scalar", "sizes", "null", "context", "unknown"
]
_NAME = re.compile(r"[A-Za-z_]\w*")
TENSORS = frozenset({"buffer", "input", "constant"})


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a launch; each element of an inline array is an argument of its own.

    `position` counts the C++ call's arguments, `element` the elements of an array. `start` and `end` are
    offsets in the wrapper's text. `target` is the variable behind casts, moves and views; `view` is set
    when the argument is a view made inside the call. `type` is the C++ or Triton type where the wrapper
    shows it.
    """

    position: int
    name: str
    expression: str
    start: int
    end: int
    kind: ArgumentKind
    target: str | None
    role: Role
    type: str = ""
    view: View | None = None
    element: int | None = None
    fresh: bool = False
    partial: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.kind in TENSORS


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. `index` counts from 0 in textual order, which is execution order outside branches and
    loops.

    `kernel` is the name in the wrapper (what value printers and provenance use), `symbol` the one on the
    device. `start` and `end` are offsets of the whole statement, `line` is 1-based. `checked` is False when
    a shim's error code is thrown away. `handle` is the provenance handle, `sources` and `atens` come from
    the comment above. `context` holds the branches and loops around the launch, outermost first. `stack` is
    the text of a KernelContextGuard.
    """

    index: int
    kernel: str
    symbol: str
    kind: LaunchKind
    callee: str
    arguments: tuple[Argument, ...]
    line: int
    start: int
    end: int
    sources: tuple[str, ...] = ()
    atens: tuple[str, ...] = ()
    handle: int | None = None
    checked: bool = True
    context: tuple[Block, ...] = ()
    stack: str = ""
    proxy_index: int | None = None
    function: str = "run_impl"

    @property
    def tensors(self) -> tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.is_tensor)

    @property
    def reads(self) -> tuple[str, ...]:
        """Variables whose values the launch may use."""
        return _unique(self.arguments, ("read", "read_write", "unknown"))

    @property
    def writes(self) -> tuple[str, ...]:
        """Variables whose values the launch may change."""
        return _unique(self.arguments, ("written", "read_write", "unknown"))


@dataclass(frozen=True, slots=True)
class Transfer:
    """A statement that moves whole tensors and is no kernel: copy, zero, clone, or an assignment between
    handles.

    `before` is the index of the launch that follows. `reads` is None when the bytes come from nowhere
    (zero).
    """

    callee: str
    writes: str
    reads: str | None
    line: int
    start: int
    end: int
    before: int
    context: tuple[Block, ...] = ()


def _unique(arguments: tuple[Argument, ...], roles: tuple[Role, ...]) -> tuple[str, ...]:
    names = (a.target for a in arguments if a.is_tensor and a.role in roles and a.target)
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Notes:
    """What the comments above a launch say."""

    sources: tuple[str, ...] = ()
    atens: tuple[str, ...] = ()
    handle: int | None = None
    kernel: str = ""
    stack: str = ""


def substitute(expression: str, values: Mapping[str, str]) -> str:
    """An expression with its names replaced by argument expressions."""
    return _NAME.sub(lambda match: values.get(match[0], match[0]), expression)
