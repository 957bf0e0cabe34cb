"""Interventions on what the call gets: inputs, scalars and constants.

Interventions on scalars, which a package has as literals in its code.

`AOTICompiledModel.__call__` passes tensors only (torch/export/pt2_archive/_package.py, 2.8-2.15): another
value for a Python number changes nothing. What can be changed is the literal, or what the call is compared
with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind, Number, Options, Where
from mcp_server.diagnosis.interventions.kernel import Edit, spelled
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
    after = f"{leaf.name} = {leaf.name}.clamp({low}, {high})"
    if places.stride not in (None, 1):
        after = f"{leaf.name}.view(-1)[{places.offset or 0}::{places.stride}].clamp_({low}, {high})"
    return _one(
        leaf,
        change,
        f"{_part(leaf, places)} clamped to {low}..{high}",
        after,
        minimal=_both_limits(leaf, low, high, places),
    )


def _part(leaf: Leaf, places: Places) -> str:
    """The input, or where only some elements are meant, these by their place in the flattened tensor."""
    if places.stride in (None, 1) and not places.offset:
        return leaf.name
    return f"{leaf.name}.flatten()[{places.offset or 0}::{places.stride or 1}]"


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
    return _one(leaf, change, f"the elements of {leaf.name} that are {in_words(where)} made {value}")


def replace_element(leaf: Leaf, index: tuple[int, ...], value: Number) -> Intervention:
    """One element made `value`."""
    change = Change("elements", leaf.input, index=index, value=value)
    return _one(leaf, change, f"{leaf.name}[{', '.join(map(str, index))}] made {value}")


def replace_rows(leaf: Leaf, rows: tuple[int, ...], value: Number, dim: int = 0) -> Intervention:
    """Whole rows along `dim` made `value`, as a mask or a padding would."""
    change = Change("elements", leaf.input, rows=rows, dim=dim, value=value)
    return _one(leaf, change, f"rows {list(rows)} of {leaf.name} made {value}")


def cast(leaf: Leaf, dtype: str) -> Intervention:
    return _one(leaf, Change("cast", leaf.input, dtype=dtype), f"{leaf.name} as {dtype}")


def move(leaf: Leaf, device: str) -> Intervention:
    return _one(leaf, Change("move", leaf.input, device=device), f"{leaf.name} on {device}")


def contiguous(leaf: Leaf) -> Intervention:
    return _one(leaf, Change("contiguous", leaf.input), f"a contiguous {leaf.name}")


def with_strides(leaf: Leaf, stride: tuple[int, ...]) -> Intervention:
    change = Change("restride", leaf.input, stride=stride)
    after = (
        f"{leaf.name} = torch.empty_strided({leaf.name}.shape, {stride}, dtype={leaf.name}.dtype)"
        f".copy_({leaf.name})"
    )
    return _one(leaf, change, f"{leaf.name} laid out with strides {list(stride)}", after)


def input_own_memory(leaf: Leaf) -> Intervention:
    """A copy: what shares memory with another input, or is misaligned, no longer does."""
    return _one(leaf, Change("align", leaf.input), f"a copy of {leaf.name} in memory of its own")


def resize(leaf: Leaf, dim: int, size: int) -> Intervention:
    """Dimension `dim` cut to `size`, or filled up by repeating what is there."""
    change = Change("resize", leaf.input, dim=dim, size=size)
    return _one(leaf, change, f"{leaf.name} with {size} elements in dimension {dim}")


def pad(leaf: Leaf, dim: int, size: int, value: Number = 0) -> Intervention:
    change = Change("pad", leaf.input, dim=dim, size=size, value=value)
    return _one(leaf, change, f"{leaf.name} padded with {value} to {size} elements in dimension {dim}")


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
    return _one(leaf, change, f"'{spell(change, leaf.name)}'")


def code_of(name: str, change: Change) -> str:
    """Python code that does what the change does."""
    if change.change == "elements":
        return _code_of_elements(name, change)
    value = code(change.value) if change.value is not None else "0"
    codes = {
        "cast": f"{name} = {name}.to(torch.{change.dtype})",
        "move": f'{name} = {name}.to("{change.device}")',
        "contiguous": f"{name} = {name}.contiguous()",
        "align": f"{name} = {name}.clone()",
        "resize": f"{name} = {name}.index_select({change.dim}, torch.arange({change.size}) % "
        f"{name}.shape[{change.dim}])",
        "pad": f"{name} = torch.cat([{name}, {name}.new_full((...), {value})], {change.dim})"
        f"  # to {change.size}",
        "drop_rows": f"{name} = {name}.index_select({change.dim}, kept)  # without {list(change.rows or ())}",
    }
    return codes.get(change.change, spell(change, name))


def _code_of_elements(name: str, change: Change) -> str:
    """For all elements, one element, rows, a condition; else in words."""
    if change.flat is not None or change.stride is not None:
        return spell(change, name)
    if change.value is None:
        only_outside = change.where in (None, Where(below=change.low, above=change.high))
        plain = only_outside and change.index is None and change.rows is None
        limits = ", ".join(
            f"{side}={code(limit)}"
            for side, limit in (("min", change.low), ("max", change.high))
            if limit is not None
        )
        return f"{name} = {name}.clamp({limits})" if plain else spell(change, name)
    value = code(change.value)
    if change.index is not None:
        return f"{name}[{', '.join(map(str, change.index))}] = {value}"
    if change.rows is not None and change.where is None:
        return f"{name} = {name}.index_fill({change.dim or 0}, torch.tensor({list(change.rows)}), {value})"
    if change.where is not None and change.rows is None:
        return f"{name} = {name}.masked_fill({condition_code(name, change.where)}, {value})"
    return spell(change, name)


def _one(
    leaf: Leaf, change: Change, what: str, after: str = "", minimal: tuple[tuple[Change, ...], ...] = ()
) -> Intervention:
    text = spell(change, leaf.name)
    return Intervention(
        key=f"input:{text}",
        kind=Kind.INPUT,
        what=f"the call with {what}",
        changes=(change,),
        before_code=leaf.name,
        after_code=after or code_of(leaf.name, change),
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


def given_value(name: str, exported: str, given: str, edit: Edit, package: Path) -> Intervention:
    """The literal that stands for the scalar replaced by the value that the caller gives.

    `package` is the edited copy.
    """
    return Intervention(
        key=f"scalar:{name}:{given}",
        kind=Kind.SCALAR,
        what=f"the call with {given} in the generated code where {name} was exported as {exported}",
        options=Options(package=package),
        before_code=f"torch.export.export(model, (..., {exported}))  # {name}",
        after_code=f"export again with {name}={given}, or make {name} a tensor input",
        spelling=spelled(edit),
    )


def ignored(name: str, exported: str) -> Intervention:
    """Where no literal is known: the call cannot be made with another value."""
    return Intervention(
        key=f"scalar:{name}",
        kind=Kind.SCALAR,
        what=f"the call with another value of {name}",
        before_code=name,
        after_code=f"{name}={exported}",
        unavailable=f"the package takes tensors only: {name} is compiled in as {exported}, and no launch is "
        "known that has it as a literal of its own",
    )


Step = Mapping[str, object]


def compiled_values(steps: Sequence[Step]) -> Intervention:
    """The captured call without the updates of constants before it."""
    kept = tuple(step for step in steps if step["do"] != "constants")
    return Intervention(
        key="constant:compiled",
        kind=Kind.CONSTANT,
        what="the call with the values that the package was compiled with, without the updates",
        options=Options(steps=kept),
        before_code="loader.update_constant_buffer(...)",
        after_code="# without this update",
    )


def cast_in_update(names: Mapping[str, str]) -> Intervention:
    """The updates with these constants cast to the dtype that the package was compiled for."""
    listed = ", ".join(f"{name} as {dtype}" for name, dtype in names.items())
    first, dtype = next(iter(names.items()))
    return Intervention(
        key=f"constant:cast:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what=f"the update with {listed}",
        options=Options(cast=dict(names)),
        before_code=f'"{first}": {first}',
        after_code=f'"{first}": {first}.to(torch.{dtype})',
    )


def constant_own_memory(names: Sequence[str]) -> Intervention:
    """The updates with these constants in memory of their own: no views of what changes later."""
    return Intervention(
        key=f"constant:own-memory:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what=f"the update with copies of {', '.join(names)}",
        options=Options(copied=tuple(names)),
        before_code=f'"{names[0]}": {names[0]}',
        after_code=f'"{names[0]}": {names[0]}.clone()',
    )


def other_steps(key: str, what: str, steps: Sequence[Step], before: str, after: str) -> Intervention:
    """Other updates: of all constants, of the half in use, swapped."""
    return Intervention(
        key=f"constant:{key}",
        kind=Kind.CONSTANT,
        what=what,
        options=Options(steps=tuple(steps)),
        before_code=before,
        after_code=after,
    )


def given_values(file: Path, names: Sequence[str] = ()) -> Intervention:
    """The call after an update with the constants of a file (`{name: tensor}`, of torch.save)."""
    listed = ", ".join(names) or "the constants"
    step: Step = {"do": "constants", "file": str(file), "how": "load_constants", "arguments": [False, False]}
    return Intervention(
        key=f"constant:file:{file}",
        kind=Kind.CONSTANT,
        what=f"the call with {listed} of {file.name}",
        options=Options(updates=(step,)),
        before_code="loader(...)",
        after_code=f'loader.load_constants(torch.load("{file}"), check_full_update=False)',
        spelling=("--constants", str(file)),
    )
