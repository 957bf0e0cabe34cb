"""Interventions on the inputs of the call."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind, Number, Where
from mcp_server.diagnosis.interventions.spelling import spell


@dataclass(frozen=True)
class Leaf:
    """One input tensor: its place among the tensors of the call, and what the user calls it (`args[1]`)."""

    input: int
    name: str


@dataclass(frozen=True)
class Places:
    """Elements of an input: flat elements offset + k * stride, or all."""

    stride: int | None = None
    offset: int | None = None


EVERYWHERE = Places()


def keep_in_range(leaf: Leaf, low: Number, high: Number, places: Places = EVERYWHERE) -> Intervention:
    """The elements outside [low, high] made the nearest limit; all others stay."""
    outside = Where(below=low, above=high)
    change = Change(
        "elements", leaf.input, low=low, high=high, where=outside, stride=places.stride, offset=places.offset
    )
    part = "" if places.stride in (None, 1) else f".view(-1)[{places.offset or 0}::{places.stride}]"
    after = f"{leaf.name} = {leaf.name}.clamp({low}, {high})"
    if part:
        after = f"{leaf.name}{part}.clamp_({low}, {high})"
    return _one(
        leaf,
        change,
        f"the elements of {leaf.name} outside {low}..{high} clamped, the others as they are",
        after,
        minimal=_both_limits(leaf, low, high, places),
    )


def _both_limits(leaf: Leaf, low: Number, high: Number, places: Places) -> tuple[tuple[Change, ...], ...]:
    """The offending elements replaced in two ways: what differs then is what depends on them."""
    outside = Where(below=low, above=high)
    return tuple(
        (
            Change(
                *("elements", leaf.input),
                value=value,
                where=outside,
                stride=places.stride,
                offset=places.offset,
            ),
        )
        for value in dict.fromkeys((low, high))
    )


def replace_where(leaf: Leaf, where: Where, value: Number) -> Intervention:
    """The elements that fulfil the condition made `value`."""
    change = Change("elements", leaf.input, where=where, value=value)
    after = f"{leaf.name} = {leaf.name}.masked_fill({condition_code(leaf.name, where)}, {code(value)})"
    return _one(leaf, change, f"the elements of {leaf.name} that are {in_words(where)} made {value}", after)


def replace_element(leaf: Leaf, index: tuple[int, ...], value: Number) -> Intervention:
    """One element made `value`."""
    place = ", ".join(map(str, index))
    change = Change("elements", leaf.input, index=index, value=value)
    return _one(leaf, change, f"{leaf.name}[{place}] made {value}", f"{leaf.name}[{place}] = {code(value)}")


def replace_rows(leaf: Leaf, rows: tuple[int, ...], value: Number, dim: int = 0) -> Intervention:
    """Whole rows along `dim` made `value`, as a mask or a padding would."""
    change = Change("elements", leaf.input, rows=rows, dim=dim, value=value)
    after = f"{leaf.name}.index_fill_({dim}, torch.tensor({list(rows)}), {code(value)})"
    return _one(leaf, change, f"rows {list(rows)} of {leaf.name} made {value}", after)


def cast(leaf: Leaf, dtype: str) -> Intervention:
    return _one(
        leaf,
        Change("cast", leaf.input, dtype=dtype),
        f"{leaf.name} as {dtype}",
        f"{leaf.name} = {leaf.name}.to(torch.{dtype})",
    )


def move(leaf: Leaf, device: str) -> Intervention:
    return _one(
        leaf,
        Change("move", leaf.input, device=device),
        f"{leaf.name} on {device}",
        f'{leaf.name} = {leaf.name}.to("{device}")',
    )


def contiguous(leaf: Leaf) -> Intervention:
    return _one(
        leaf,
        Change("contiguous", leaf.input),
        f"a contiguous {leaf.name}",
        f"{leaf.name} = {leaf.name}.contiguous()",
    )


def with_strides(leaf: Leaf, stride: tuple[int, ...]) -> Intervention:
    return _one(
        leaf,
        Change("restride", leaf.input, stride=stride),
        f"{leaf.name} laid out with strides {list(stride)}",
        f"{leaf.name} = torch.empty_strided({leaf.name}.shape, {stride}, dtype={leaf.name}.dtype)"
        f".copy_({leaf.name})",
    )


def own_memory(leaf: Leaf) -> Intervention:
    """A copy: what shares memory with another input, or is misaligned, no longer does."""
    return _one(
        leaf,
        Change("align", leaf.input),
        f"a copy of {leaf.name} in memory of its own",
        f"{leaf.name} = {leaf.name}.clone()",
    )


def resize(leaf: Leaf, dim: int, size: int) -> Intervention:
    """Dimension `dim` cut to `size`, or filled up by repeating what is there."""
    return _one(
        leaf,
        Change("resize", leaf.input, dim=dim, size=size),
        f"{leaf.name} with {size} elements in dimension {dim}",
        f"{leaf.name} = {leaf.name}.narrow({dim}, 0, {size})  # or pad to {size}",
    )


def pad(leaf: Leaf, dim: int, size: int, value: Number = 0) -> Intervention:
    return _one(
        leaf,
        Change("pad", leaf.input, dim=dim, size=size, value=value),
        f"{leaf.name} padded with {value} to {size} elements in dimension {dim}",
        f"{leaf.name} = torch.cat([{leaf.name}, {leaf.name}.new_full((...), {code(value)})], {dim})"
        f"  # to {size}",
    )


def exchange(order: tuple[int, ...], names: tuple[str, ...]) -> Intervention:
    """The inputs in another order: `order[i]` is the present place of the new input i."""
    swapped = [name for place, name in enumerate(names) if order[place] != place]
    return Intervention(
        key=f"input:order:{','.join(map(str, order))}",
        kind=Kind.INPUT,
        what=f"the call with {' and '.join(swapped)} exchanged",
        changes=(Change("permute", order=order),),
        before_code=", ".join(names),
        after_code=", ".join(names[place] for place in order),
        spelling=("--change", spell(Change("permute", order=order), "")),
    )


def together(key: str, what: str, parts: tuple[Intervention, ...]) -> Intervention:
    """Several changes of inputs that only make sense at once: all on one device, say."""
    return Intervention(
        key=key,
        kind=Kind.INPUT,
        what=what,
        changes=tuple(change for part in parts for change in part.changes),
        before_code="\n".join(part.before_code for part in parts),
        after_code="\n".join(part.after_code for part in parts),
        spelling=tuple(word for part in parts for word in part.spelling),
    )


def changed(leaf: Leaf, change: Change) -> Intervention:
    """Any change of one input, as a caller spelled it."""
    text = spell(change, leaf.name)
    return _one(leaf, change, f"'{text}'", text)


def _one(
    leaf: Leaf, change: Change, what: str, after: str, minimal: tuple[tuple[Change, ...], ...] = ()
) -> Intervention:
    text = spell(change, leaf.name)
    return Intervention(
        key=f"input:{text}",
        kind=Kind.INPUT,
        what=f"the call with {what}",
        changes=(change,),
        before_code=leaf.name,
        after_code=after,
        minimal=minimal,
        spelling=("--change", text),
    )


def code(value: Number) -> str:
    """A number as Python code."""
    return f"float('{value}')" if isinstance(value, str) else str(value)


def condition_code(name: str, where: Where) -> str:
    """Python code of a mask of the elements."""
    parts = [
        f"({name} {symbol} {code(limit)})"
        for symbol, limit in (("<", where.below), (">", where.above), ("==", where.equals))
        if limit is not None
    ]
    parts += [f"~torch.isfinite({name})"] if where.non_finite else []
    parts += [f"torch.isnan({name})"] if where.nan else []
    return " | ".join(parts)


def in_words(where: Where) -> str:
    parts = [
        f"{word} {limit}"
        for word, limit in (("below", where.below), ("above", where.above), ("equal to", where.equals))
        if limit is not None
    ]
    parts += ["not finite"] if where.non_finite else []
    parts += ["NaN"] if where.nan else []
    return " or ".join(parts)
