"""Symbolic sizes of a wrapper, and kernel bounds resolved to them.

A bound such as `ks0` is resolved to the launch's argument, its symbol, input dimension and allowed range.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mcp_server.package.launches import Launch, substitute
from mcp_server.package.signature import CompiledInput
from mcp_server.package.terms.sizes import evaluate_whole

SymbolKind = Literal["size", "stride", "value", "computed"]

_SIZE = re.compile(
    r"(?P<tensor>\w+)(?:_|\.)(?P<what>size|stride)(?:\[(?P<dim>\d{1,9})\]|\((?P<called>\d{1,9})\))"
)
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Symbol:
    """One integer variable of the wrapper.

    Kinds: `size` and `stride` of dimension `dim` of `tensor`; `value`, the element of `tensor` (`.item()`);
    `computed`, an `expression` over other symbols. `line` is 1-based in wrapper.cpp.
    """

    name: str
    kind: SymbolKind
    expression: str
    line: int
    tensor: str | None = None
    dim: int | None = None

    @property
    def unbacked(self) -> bool:
        """Whether the value depends on data (an unbacked symbol)."""
        return bool(re.fullmatch(r"z?uf?\d+", self.name))


def define(name: str, expression: str, line: int) -> Symbol:
    """The symbol defined by `int64_t name = expression;`."""
    if match := _SIZE.fullmatch(expression):
        kind: SymbolKind = "size" if match["what"] == "size" else "stride"
        return Symbol(name, kind, expression, line, match["tensor"], int(match["dim"] or match["called"]))
    return Symbol(name, "computed", expression, line)


def names_in(expression: str) -> tuple[str, ...]:
    """The identifiers of an expression, without duplicates."""
    return tuple(dict.fromkeys(_NAME.findall(expression)))


def origins(name: str, symbols: Mapping[str, Symbol]) -> tuple[Symbol, ...]:
    """List the definitions on which a name or expression depends, nearest first, without duplicates."""
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


def known_sizes(symbols: Mapping[str, Symbol], given: Mapping[str, int]) -> dict[str, int]:
    """Compute all symbols of the wrapper that follow from the given ones."""
    found = dict(given)
    for symbol in symbols.values():
        value = evaluate_whole(symbol.expression, found) if symbol.kind == "computed" else None
        if value is not None:
            found.setdefault(symbol.name, value)
    return found


def scalar_values(launch: Launch, sizes: Mapping[str, int]) -> dict[str, int]:
    """Compute the integers that a launch passes, by parameter, for these values of the symbols."""
    passed = {a.name: a.expression for a in launch.arguments if a.name and not a.is_tensor}
    values = {name: evaluate_whole(text, sizes) for name, text in passed.items()}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SizeOrigin:
    """A size on which a bound depends: dimension `dim` of input `input_index`, or of the wrapper's `tensor`.

    `lower` and `upper` are the compiled inclusive range. None if unchecked. `label` is a display name.
    """

    symbol: str
    tensor: str
    dim: int | None
    input_index: int | None = None
    label: str = ""
    lower: int | None = None
    upper: int | None = None

    def __str__(self) -> str:
        if self.dim is None:
            return f"{self.symbol} is a value of {self.tensor}"
        where = f"{self.symbol} is the size of dim {self.dim} of {self.label or self.tensor}"
        if self.lower is None and self.upper is None:
            return where
        lower = "?" if self.lower is None else self.lower
        return f"{where}, compiled for {lower} to {self.upper or 'any'}"


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound: `text` in the kernel, `expression` over the wrapper's symbols, `value` if constant."""

    text: str
    expression: str
    value: int | None
    sizes: tuple[SizeOrigin, ...]

    @property
    def smallest(self) -> int | None:
        """The bound if constant, or the least compiled value (0 if unchecked) of its only size, else None."""
        if self.value is not None:
            return self.value
        if len(self.sizes) != 1 or self.expression != self.sizes[0].symbol:
            return None
        return self.sizes[0].lower or 0

    def describe(self) -> str:
        """Write the bound as a phrase."""
        if self.value is not None:
            return str(self.value)
        chain = self.text if self.text == self.expression else f"{self.text} = {self.expression}"
        return f"{chain} ({'; '.join(map(str, self.sizes))})" if self.sizes else chain


def resolve_bound(
    text: str, launch: Launch, symbols: Mapping[str, Symbol], inputs: Sequence[CompiledInput]
) -> Bound:
    """Resolve the bound `text` of a kernel at one of its launches."""
    expression = plain(substitute(text, launch.passed))
    value = int(expression) if re.fullmatch(r"-?\d+", expression) else None
    sizes = []
    for symbol in origins(expression, symbols):
        if symbol.tensor is None:
            continue
        size = SizeOrigin(symbol.name, symbol.tensor, symbol.dim)
        compiled = next((i for i in inputs if i.name == symbol.tensor), None)
        if compiled is not None and symbol.kind == "size" and symbol.dim is not None:
            size = replace(size, input_index=compiled.index, label=compiled.label)
            for dim in compiled.dims[symbol.dim : symbol.dim + 1]:
                size = replace(size, lower=dim.lower, upper=dim.upper)
        sizes.append(size)
    return Bound(plain(text), expression, value, tuple(sizes))


def plain(expression: str) -> str:
    """Remove integer suffixes from a C++ expression."""
    return re.sub(r"(?<=\d)L\b", "", expression)
