"""How a change of an input is written on the command line, and read: `args[1]: clamp 0 9 where > 9`.

    LEAF: clamp LOW HIGH [SELECTION]     - stands for no limit
    LEAF: set VALUE [SELECTION]
    LEAF: cast DTYPE | move DEVICE | contiguous | own-memory | restride S,S
    LEAF: resize DIM SIZE | pad DIM SIZE VALUE | drop-rows DIM N,N
    order N,N,N

SELECTION is any of: `at I,J`, `flat N,N`, `rows N,N`, `dim D`, `every STEP from OFFSET`, and
`where CONDITION [or CONDITION]` with the conditions `< X`, `> X`, `== X`, `nan`, `non-finite`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mcp_server.diagnosis.interventions.base import Change, Number, Where
from mcp_server.errors import ProblemError

FORMS = (
    "'LEAF: clamp LOW HIGH', 'LEAF: set VALUE', 'LEAF: cast DTYPE', 'LEAF: move DEVICE', "
    "'LEAF: contiguous', 'LEAF: own-memory', 'LEAF: resize DIM SIZE', 'LEAF: pad DIM SIZE VALUE', "
    "'LEAF: drop-rows DIM N,N', 'order N,N'; clamp and set may end with 'at I,J', 'flat N,N', 'rows N,N', "
    "'where < X or > X', 'where == X', 'where nan', 'where non-finite'"
)
_SYMBOLS = {"<": "below", ">": "above", "==": "equals"}
_FLAGS = {"nan": "nan", "non-finite": "non_finite"}


def read_change(text: str, resolve: Callable[[str], int]) -> Change:
    """The change that `text` describes; `resolve` gives the place of a leaf.

    Raises `ProblemError` for what is no change, with the forms that are.
    """
    leaf, colon, rest = text.rpartition(": ")
    words = (rest if colon else text).split()
    try:
        if words[:1] == ["order"] and not colon:
            return Change("permute", order=_integers(words[1]))
        if not colon:
            raise ValueError("no leaf is named")
        verb, arguments = words[0], words[1:]
        if verb not in _VERBS:
            raise ValueError(f"unknown change {verb!r}")
        return _VERBS[verb](resolve(leaf.strip()), arguments)
    except (IndexError, ValueError, TypeError) as error:
        raise ProblemError(f"this is no change of an input ({error})", value=text, allowed=FORMS) from None


def spell(change: Change, leaf: str) -> str:
    """The text that `read_change` reads as `change`."""
    where = _spell_selection(change)
    if change.change == "permute":
        return f"order {_joined(change.order or ())}"
    if change.change in ("elements", "clamp"):
        if change.value is not None:
            return f"{leaf}: set {change.value}{where}"
        return f"{leaf}: clamp {_limit(change.low)} {_limit(change.high)}{where}"
    simple = {
        "cast": f"cast {change.dtype}",
        "move": f"move {change.device}",
        "contiguous": "contiguous",
        "align": "own-memory",
        "resize": f"resize {change.dim} {change.size}",
        "pad": f"pad {change.dim} {change.size} {change.value}",
        "drop_rows": f"drop-rows {change.dim} {_joined(change.rows or ())}",
        "fill": f"set {change.value} where non-finite",
        "replace": f"set {change.new} where == {change.old}",
    }
    if change.change == "restride" and isinstance(change.stride, tuple):
        return f"{leaf}: restride {_joined(change.stride)}"
    return f"{leaf}: {simple[change.change]}"


def _clamp(place: int, words: list[str]) -> Change:
    low, high = (None if word == "-" else number(word) for word in words[:2])
    if low is None and high is None:
        raise ValueError("clamp needs a limit")
    if low is not None and high is not None and float(low) > float(high):
        raise ValueError("the lower limit is above the upper one")
    return _selected(Change("elements", place, low=low, high=high), words[2:])


def _set(place: int, words: list[str]) -> Change:
    return _selected(Change("elements", place, value=number(words[0])), words[1:])


def _exact(words: list[str], count: int) -> list[str]:
    if len(words) != count:
        raise ValueError(f"{count} words are needed after the name of the change")
    return words


def _cast(place: int, words: list[str]) -> Change:
    return Change("cast", place, dtype=_exact(words, 1)[0].removeprefix("torch."))


def _pad(place: int, words: list[str]) -> Change:
    dim, size, value = _exact(words, 3)
    return Change("pad", place, dim=int(dim), size=int(size), value=number(value))


def _resize(place: int, words: list[str]) -> Change:
    dim, size = _exact(words, 2)
    return Change("resize", place, dim=int(dim), size=int(size))


def _drop(place: int, words: list[str]) -> Change:
    dim, rows = _exact(words, 2)
    return Change("drop_rows", place, dim=int(dim), rows=_integers(rows))


def _plain(name: str) -> Callable[[int, list[str]], Change]:
    """A change that needs no more words."""

    def read(place: int, words: list[str]) -> Change:
        _exact(words, 0)
        return Change(name, place)

    return read


_VERBS: dict[str, Callable[[int, list[str]], Change]] = {
    "clamp": _clamp,
    "set": _set,
    "cast": _cast,
    "move": lambda place, words: Change("move", place, device=_exact(words, 1)[0]),
    "contiguous": _plain("contiguous"),
    "own-memory": _plain("align"),
    "restride": lambda place, words: Change("restride", place, stride=_integers(_exact(words, 1)[0])),
    "resize": _resize,
    "pad": _pad,
    "drop-rows": _drop,
}


def _selected(change: Change, words: list[str]) -> Change:
    """`change` for the elements that the words choose."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "at":
            change = replace(change, index=_integers(rest.pop(0)))
        elif word in ("flat", "rows"):
            change = replace(change, **{word: _integers(rest.pop(0))})  # type: ignore[arg-type]
        elif word == "dim":
            change = replace(change, dim=int(rest.pop(0)))
        elif word == "every":
            step, word, offset = rest.pop(0), rest.pop(0), rest.pop(0)
            if word != "from":
                raise ValueError("'every STEP from OFFSET' is meant")
            change = replace(change, stride=int(step), offset=int(offset))
        elif word == "where":
            return replace(change, where=_conditions(rest))
        else:
            raise ValueError(f"unknown word {word!r}")
    return change


def _conditions(words: list[str]) -> Where:
    found: dict[str, Number | bool] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in _FLAGS:
            found[_FLAGS[word]] = True
        elif word in _SYMBOLS:
            found[_SYMBOLS[word]] = number(rest.pop(0))
        else:
            raise ValueError(f"unknown condition {word!r}")
        if rest and rest.pop(0) != "or":
            raise ValueError("conditions are joined by 'or'")
    if not found:
        raise ValueError("where needs a condition")
    return Where(**found)  # type: ignore[arg-type]


def _spell_selection(change: Change) -> str:
    parts = [
        f"{word} {_joined(places)}"
        for word, places in (("at", change.index), ("flat", change.flat), ("rows", change.rows))
        if places is not None
    ]
    if change.dim is not None:
        parts.append(f"dim {change.dim}")
    if isinstance(change.stride, int):
        parts.append(f"every {change.stride} from {change.offset or 0}")
    if change.where is not None:
        parts.append("where " + " or ".join(_spell_conditions(change.where)))
    return "".join(f" {part}" for part in parts)


def _spell_conditions(where: Where) -> list[str]:
    given = [(symbol, getattr(where, name)) for symbol, name in _SYMBOLS.items()]
    flags = [word for word, name in _FLAGS.items() if getattr(where, name)]
    return [*(f"{symbol} {value}" for symbol, value in given if value is not None), *flags]


def number(word: str) -> Number:
    """A number of a text; NaN and infinities stay text."""
    if re.fullmatch(r"[+-]?\d+", word):
        return int(word)
    value = float(word)
    return value if value - value == 0 else str(value)


def _integers(word: str) -> tuple[int, ...]:
    return tuple(int(part) for part in word.strip("[]()").split(","))


def _joined(places: tuple[int, ...]) -> str:
    return ",".join(map(str, places))


def _limit(value: Number | None) -> str:
    return "-" if value is None else str(value)
