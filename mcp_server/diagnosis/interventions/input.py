"""Interventions on the inputs of a call, and their notation: `args[1]: clamp 0 9 where > 9`.

    INPUT: clamp LOW HIGH [SELECTION]     - stands for no limit
    INPUT: set VALUE [SELECTION]
    INPUT: cast DTYPE | reread DTYPE | move DEVICE | contiguous | own-memory | restride S,S
    INPUT: reshape S,S | reorder D,D | flip DIM | sort DIM | divide NUMBER
    INPUT: take N FILE (the values of input N of another file)
    INPUT: resize DIM SIZE | pad DIM SIZE VALUE | drop-rows DIM N,N
    order N,N,N

SELECTION is any of: `at I,J`, `flat N,N`, `rows N,N`, `dim D`, `every STEP from OFFSET [to END]`, and
`where CONDITION [or CONDITION]` with the conditions `< X`, `> X`, `== X`, `nan`, `non-finite`.

Python numbers among the inputs cannot be changed: `AOTICompiledModel.__call__` passes only tensors
(torch/export/pt2_archive/_package.py, 2.8-2.15), and the generated code has the numbers as literals.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.errors import ProblemError, argument
from mcp_server.operations.arguments import FORMS, closest
from mcp_server.worker.protocol import Change, Where
from mcp_server.worker.report import Number


@dataclass(frozen=True)
class Leaf:
    """One input tensor: its place among the tensors of the call, and the user's name for it (`args[1]`)."""

    input: int
    name: str


EVERYWHERE = slice(None)


def slice_text(flat: slice) -> str:
    """A slice of a flat input as Python writes it: `[81:162]`, `[0::2]`."""
    step = f":{flat.step}" if flat.step not in (None, 1) else ""
    return f"[{flat.start or 0}:{'' if flat.stop is None else flat.stop}{step}]"


def keep_in_range(leaf: Leaf, low: Number, high: Number, flat: slice = EVERYWHERE) -> Intervention:
    """Set the elements of a slice of the flat input that are outside [low, high] to the nearest limit."""
    where = Where(below=low, above=high)
    outside = Change("elements", leaf.input, where=where, stride=flat.step, offset=flat.start, end=flat.stop)
    # The offending elements are replaced in two ways. Outputs that differ between the two depend on them.
    minimal = tuple((replace(outside, value=value),) for value in dict.fromkeys((low, high)))
    part, after = leaf.name, f"{leaf.name} = {leaf.name}.clamp({low}, {high})"
    if flat != EVERYWHERE:
        after = f"{leaf.name}.view(-1){slice_text(flat)}.clamp_({low}, {high})"
        part = f"{leaf.name}.flatten(){slice_text(flat)}"
    made = _one(leaf, replace(outside, low=low, high=high), f"{part} clamped to {low}..{high}", after)
    return replace(made, minimal=minimal)


def replace_where(leaf: Leaf, where: Where, value: Number) -> Intervention:
    """Set the elements that satisfy the condition to `value`."""
    limits = (("below", where.below), ("above", where.above), ("equal to", where.equals))
    parts = [f"{word} {limit}" for word, limit in limits if limit is not None]
    parts += ["not finite"] if where.non_finite else []
    parts += ["NaN"] if where.nan else []
    change = Change("elements", leaf.input, where=where, value=value)
    return _one(
        leaf, change, f"the elements of {leaf.name} that are {' or '.join(parts)} replaced by {value}"
    )


def replace_element(leaf: Leaf, index: tuple[int, ...], value: Number) -> Intervention:
    change = Change("elements", leaf.input, index=index, value=value)
    return _one(leaf, change, f"{leaf.name}[{', '.join(map(str, index))}] replaced by {value}")


def whole(leaf: Leaf, verb: str, *values: Any) -> Intervention:
    """Change a whole input. `verb` is a row of `_VERBS`, `values` are the values of its fields."""
    row, fields = _VERBS[verb], dict(zip(_VERBS[verb].fields, values, strict=True))
    shown = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    change = replace(Change(row.change, leaf.input), **fields)
    return _one(leaf, change, row.what.format(name=leaf.name, **shown))


def exchange(order: tuple[int, ...], names: tuple[str, ...]) -> Intervention:
    """Pass the inputs in another order: new input i is current input `order[i]`."""
    swapped = [name for place, name in enumerate(names) if order[place] != place]
    change = Change("permute", order=order)
    return Intervention(
        key=f"input:order:{','.join(map(str, order))}",
        kind=Kind.INPUT,
        what=f"the call with {' and '.join(swapped)} exchanged",
        changes=(change,),
        before_code=", ".join(names),
        after_code=", ".join(names[place] for place in order),
        spelling=("--change", spell(change, "")),
    )


def as_before(leaf: Leaf, what: str, of: tuple[Path, int]) -> Intervention:
    """Give an input the values that `of` names: the file of another call, and the number of its input."""
    change = Change("take", leaf.input, size=of[1], file=str(of[0]))
    return _one(leaf, change, f"{leaf.name} as it was before {what}")


def changed(leaf: Leaf, change: Change) -> Intervention:
    """The intervention for a change, described in the notation of this module."""
    return _one(leaf, change, f"'{spell(change, leaf.name)}'")


def compiled_values(names: Sequence[str]) -> Intervention:
    """Keep the compiled values of these constants, by omitting them from updates before the captured call."""
    of = names[0] if len(names) == 1 else f"{len(names)} constants"
    return Intervention(
        key=f"constant:compiled:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what=f"the call with the values of {of} that the package was compiled with, not those of the update",
        options=Options(omitted=tuple(names)),
        smallest=len(names) > 1,
        not_for_shipping="The package then has old weights.",
    )


def constant_own_memory(names: Sequence[str]) -> Intervention:
    """Update the package with copies of these constants, each in its own memory."""
    return Intervention(
        key=f"constant:own-memory:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what="the call after those constants were given as copies of their own",
        options=Options(copied=tuple(names)),
    )


def together(key: str, what: str, parts: Sequence[Intervention]) -> Intervention:
    """Combine changes, for example to move all inputs to one device."""
    return Intervention(
        key=key,
        kind=parts[0].kind if parts else Kind.INPUT,
        what=what,
        changes=tuple(change for part in parts for change in part.changes),
        options=Options(
            package=next((part.options.package for part in parts if part.options.package), None),
            updates=next((part.options.updates for part in parts if part.options.updates), None),
            env={name: value for part in parts for name, value in part.options.env.items()},
        ),
        before_code="\n".join(part.before_code for part in parts),
        after_code="\n".join(part.after_code for part in parts),
        spelling=tuple(word for part in parts for word in part.spelling),
        unavailable=next((part.unavailable for part in parts if part.unavailable), ""),
        parts=tuple(part.key for part in parts),
    )


def _one(leaf: Leaf, change: Change, what: str, after: str = "") -> Intervention:
    text = spell(change, leaf.name)
    return Intervention(
        key=f"input:{text}",
        kind=Kind.INPUT,
        what=f"the call with {what}",
        changes=(change,),
        before_code=leaf.name,
        after_code=after or _code_of(leaf.name, change),
        spelling=("--change", text),
    )


def _code_of(name: str, change: Change) -> str:
    """Python code for the change, or its `try-fix` spelling if no short code can express it."""
    if change.change != "elements":
        code = next(verb.code for verb in _VERBS.values() if verb.change == change.change)
        values = {**vars(change), "value": _number_code(change.value or 0), "rows": list(change.rows or ())}
        return code.format(name=name, **values) or spell(change, name)
    value = _number_code(change.value) if change.value is not None else ""
    if change.flat is not None or change.stride is not None:
        return spell(change, name)
    if not value and change.index is None and change.rows is None:
        sides = (("min", change.low), ("max", change.high))
        limits = ", ".join(f"{side}={_number_code(end)}" for side, end in sides if end is not None)
        if change.where in (None, Where(below=change.low, above=change.high)):
            return f"{name} = {name}.clamp({limits})"
    if value and change.index is not None:
        return f"{name}[{_written(change.index, ', ')}] = {value}"
    if value and change.rows is not None and change.where is None:
        return f"{name} = {name}.index_fill({change.dim or 0}, torch.tensor({list(change.rows)}), {value})"
    if value and change.where is not None and change.rows is None:
        ends = [(symbol, getattr(change.where, field)) for symbol, field in _SYMBOLS.items()]
        masks = [f"({name} {symbol} {_number_code(end)})" for symbol, end in ends if end is not None]
        masks += [f"~torch.isfinite({name})"] if change.where.non_finite else []
        masks += [f"torch.isnan({name})"] if change.where.nan else []
        return f"{name} = {name}.masked_fill({' | '.join(masks)}, {value})"
    return spell(change, name)


def _number_code(value: Number) -> str:
    return f"float('{value}')" if isinstance(value, str) else str(value)


# Words of a selection with their fields of `Change`, then words of conditions with their fields of `Where`.
_PLACES = {"at": "index", "flat": "flat", "rows": "rows", "dim": "dim"}
_SYMBOLS = {"<": "below", ">": "above", "==": "equals"}
_FLAGS = {"nan": "nan", "non-finite": "non_finite"}


@dataclass(frozen=True)
class _Verb:
    """A change of a whole input: its name in the worker, its fields of `Change`, and its Python code.

    `what` completes "the call with". Empty for changes that only users ask for.
    """

    change: str
    fields: tuple[str, ...] = ()
    code: str = ""
    what: str = ""


_VERBS = {
    "cast": _Verb("cast", ("dtype",), "{name} = {name}.to(torch.{dtype})", "{name} as {dtype}"),
    "reread": _Verb(
        *("reread", ("dtype",)),
        "{name} = {name}.flatten().view(torch.{dtype})[: {name}.numel()].view({name}.shape).to({name}.dtype)",
        "the memory of {name} read as {dtype}",
    ),
    "move": _Verb("move", ("device",), '{name} = {name}.to("{device}")', "{name} on {device}"),
    "contiguous": _Verb("contiguous", (), "{name} = {name}.contiguous()", "a contiguous {name}"),
    "own-memory": _Verb("align", (), "{name} = {name}.clone()"),
    "restride": _Verb(
        *("restride", ("stride",)),
        "{name} = torch.empty_strided({name}.shape, {stride}, dtype={name}.dtype).copy_({name})",
        "{name} laid out with strides {stride}",
    ),
    "reshape": _Verb("reshape", ("shape",), "{name} = {name}.reshape({shape})", "{name} reshaped to {shape}"),
    "reorder": _Verb(
        *("reorder", ("order",)),
        "{name} = {name}.permute({order}).contiguous()",
        "the dimensions of {name} in the order {order}",
    ),
    "flip": _Verb("flip", ("dim",), "{name} = {name}.flip({dim})"),
    "sort": _Verb("sort", ("dim",), "{name} = {name}.sort({dim}).values"),
    "divide": _Verb("divide", ("value",), "{name} = {name} / {value}"),
    "take": _Verb("take", ("size", "file"), "{name} = torch.load({file!r})[{size}]"),
    "resize": _Verb(
        *("resize", ("dim", "size")),
        "{name} = {name}.index_select({dim}, torch.arange({size}) % {name}.shape[{dim}])",
        "{name} resized to {size} elements in dimension {dim}",
    ),
    "pad": _Verb(
        *("pad", ("dim", "size", "value")),
        "{name} = torch.cat([{name}, {name}.new_full((...), {value})], {dim})  # to {size}",
    ),
    "drop-rows": _Verb(
        "drop_rows", ("dim", "rows"), "{name} = {name}.index_select({dim}, kept)  # without {rows}"
    ),
}


def spell(change: Change, leaf: str) -> str:
    """The text that `read_change` parses back to `change`."""
    if change.change == "permute":
        return f"order {_written(change.order)}"
    if change.change == "elements" and change.value is not None:
        return f"{leaf}: set {change.value}{_selection(change)}"
    if change.change == "elements":
        low, high = ("-" if limit is None else limit for limit in (change.low, change.high))
        return f"{leaf}: clamp {low} {high}{_selection(change)}"
    word, verb = next(row for row in _VERBS.items() if row[1].change == change.change)
    return f"{leaf}: {' '.join([word, *(_written(getattr(change, field)) for field in verb.fields)])}"


def _selection(change: Change) -> str:
    """The words that select the elements, with a leading space. Empty if all are selected."""
    places = [(word, getattr(change, field)) for word, field in _PLACES.items()]
    parts = [f"{word} {_written(value)}" for word, value in places if value is not None]
    if isinstance(change.stride, int):
        end = f" to {change.end}" if change.end is not None else ""
        parts.append(f"every {change.stride} from {change.offset or 0}{end}")
    if change.where is not None:
        limits = [(symbol, getattr(change.where, name)) for symbol, name in _SYMBOLS.items()]
        conditions = [f"{symbol} {value}" for symbol, value in limits if value is not None]
        conditions += [word for word, name in _FLAGS.items() if getattr(change.where, name)]
        parts.append("where " + " or ".join(conditions))
    return "".join(f" {part}" for part in parts)


def _written(value: object, between: str = ",") -> str:
    return between.join(map(str, value)) if isinstance(value, tuple) else str(value)


def read_change(text: str, resolve: Callable[[str], int]) -> Change:
    """Parse `text` to a change. `resolve` returns the number of an input from its name.

    For other text, raise a `ProblemError` that lists the valid forms.
    """
    leaf, colon, rest = text.rpartition(": ")
    words = (rest if colon else text).split()
    try:
        if words[:1] == ["order"] and not colon:
            return Change("permute", order=_integers(words[1]))
        if not colon:
            raise ValueError(f"the input and a colon must come first{_like(words[0])}")
        return _read_verb(words[0], resolve(leaf.strip()), words[1:])
    except (IndexError, ValueError, TypeError) as error:
        what, line = (
            f"this is not a change of an input: {error}",
            f"{argument('changes')} 'args[0]: clamp 0 9'",
        )
        raise ProblemError(what, value=text, allowed=FORMS, next_call=line) from None


def _like(verb: str) -> str:
    return closest(verb, (*_VERBS, "set", "clamp"))


def _read_verb(verb: str, place: int, words: list[str]) -> Change:
    if verb == "set":
        return _selected(Change("elements", place, value=_number(words[0])), words[1:])
    if verb == "clamp":
        low, high = (None if word == "-" else _number(word) for word in words[:2])
        if low is None and high is None:
            raise ValueError("clamp needs a limit")
        if low is not None and high is not None and float(low) > float(high):
            raise ValueError("the lower limit is above the upper one")
        return _selected(Change("elements", place, low=low, high=high), words[2:])
    if verb not in _VERBS:
        raise ValueError(f"unknown change {verb!r}{_like(verb)}")
    fields = _VERBS[verb].fields
    if len(words) != len(fields):
        raise ValueError(f"{len(fields)} words are needed after the name of the change")
    values = {field: _READ[field](word) for field, word in zip(fields, words, strict=True)}
    return replace(Change(_VERBS[verb].change, place), **values)


def _selected(change: Change, words: list[str]) -> Change:
    """`change` limited to the elements that the words select."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in _PLACES:
            change = replace(change, **{_PLACES[word]: _READ[_PLACES[word]](rest.pop(0))})
        elif word == "every":
            step, word, offset = rest.pop(0), rest.pop(0), rest.pop(0)
            if word != "from":
                raise ValueError("'every STEP from OFFSET' is meant")
            change = replace(change, stride=int(step), offset=int(offset))
            if rest[:1] == ["to"]:
                change, rest = replace(change, end=int(rest[1])), rest[2:]
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
            found[_SYMBOLS[word]] = _number(rest.pop(0))
        else:
            raise ValueError(f"unknown condition {word!r}")
        if rest and rest.pop(0) != "or":
            raise ValueError("conditions are joined by 'or'")
    if not found:
        raise ValueError("where needs a condition")
    return Where(**found)  # type: ignore[arg-type]


def _number(word: str) -> Number:
    """Convert a word to a number or bool; NaN and infinities stay text."""
    if word in ("True", "False"):
        return int(word == "True")
    if re.fullmatch(r"[+-]?\d+", word):
        return int(word)
    value = float(word)
    return value if value - value == 0 else str(value)


def _integers(word: str) -> tuple[int, ...]:
    return tuple(int(part) for part in word.strip("[]()").split(","))


# How to parse each field of a change.
_READ: dict[str, Callable[[str], Any]] = {
    "dtype": lambda word: word.removeprefix("torch."),
    "file": str,
    "device": str,
    "dim": int,
    "size": int,
    "value": _number,
    "flat": _integers,
    "rows": _integers,
    "index": _integers,
    "shape": _integers,
    "order": _integers,
    "stride": _integers,
}
