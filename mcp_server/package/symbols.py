"""Symbolic sizes of a wrapper: where each comes from, and every place that uses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SymbolKind = Literal["size", "stride", "value", "computed"]

_SIZES = re.compile(r"(?P<tensor>\w+)_(?P<what>size|stride)\[(?P<dim>\d+)\]")
_METHOD = re.compile(r"(?P<tensor>\w+)\.(?P<what>size|stride)\((?P<dim>\d+)\)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Symbol:
    """One integer variable of the wrapper.

    `size` and `stride`: dimension `dim` of `tensor`, at run time. `value`: the value of `tensor` (`.item()`).
    `computed`: `expression` over other symbols. `line` is 1-based in wrapper.cpp.
    """

    name: str
    kind: SymbolKind
    expression: str
    line: int
    tensor: str | None = None
    dim: int | None = None

    @property
    def unbacked(self) -> bool:
        """Known only at run time, from the data or from a data-dependent size."""
        return bool(re.fullmatch(r"z?uf?\d+", self.name))


def define(name: str, expression: str, line: int) -> Symbol:
    """The symbol that `int64_t name = expression;` defines."""
    match = _SIZES.fullmatch(expression) or _METHOD.fullmatch(expression)
    if match:
        kind: SymbolKind = "size" if match["what"] == "size" else "stride"
        return Symbol(name, kind, expression, line, match["tensor"], int(match["dim"]))
    return Symbol(name, "computed", expression, line)


def names_in(expression: str) -> tuple[str, ...]:
    """The identifiers of an expression, each once."""
    return tuple(dict.fromkeys(_NAME.findall(expression)))


def origins(name: str, symbols: Mapping[str, Symbol]) -> tuple[Symbol, ...]:
    """The chain of definitions behind a name or an expression, nearest first, each symbol once."""
    found: dict[str, Symbol] = {}
    queue = list(names_in(name))
    while queue:
        current = queue.pop(0)
        symbol = symbols.get(current)
        if symbol is None or current in found:
            continue
        found[current] = symbol
        if symbol.kind == "computed":
            queue += names_in(symbol.expression)
    return tuple(found.values())


def uses(name: str, text: str, start: int, end: int, line: int) -> tuple[int, ...]:
    """The 1-based lines between two offsets that hold `name` as a whole word; `line` is that of `start`."""
    found = []
    at, counted = start, start
    while (at := text.find(name, at, end)) >= 0:
        after = at + len(name)
        if not _WORD.match(text, after) and not _WORD.match(text, at - 1):
            line += text.count("\n", counted, at)
            counted = at
            found.append(line)
            after = text.find("\n", after, end)
        if after < 0:
            break
        at = after
    return tuple(found)
