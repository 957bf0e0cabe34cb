"""Faults of a call: the value, type, layout, size, number or order of its inputs."""

import math
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.plant.faults import Draft, Fault, Truth
from benchmarks.plant.models import Input

Wanted = Callable[[Input], bool]
BOUND, MISMATCH, VALUE = ("index_out_of_bounds",), ("input_mismatch",), ("nan_or_inf",)
RANGE = ("shape_out_of_range", "input_mismatch")


def an_index(given: Input) -> bool:
    return given.kind == "index"


def a_float(given: Input) -> bool:
    return given.floating


def value_at(wanted: Wanted, value: Callable[[Draft, Input], float]) -> Callable[[Draft], Truth | None]:
    """Give one element of an input a value."""

    def plant(draft: Draft) -> Truth | None:
        place = draft.pick(wanted)
        if place is None:
            return None
        where = draft.element(draft.inputs[place])
        draft.inputs[place][where] = value(draft, draft.model.inputs[place])
        return Truth(inputs=(place,), element=where)

    return plant


def row_of(wanted: Wanted, value: Callable[[Draft], float]) -> Callable[[Draft], Truth | None]:
    """Give all of one row of an input one value."""

    def plant(draft: Draft) -> Truth | None:
        place = draft.pick(wanted)
        if place is None:
            return None
        row = draft.chance.randrange(draft.inputs[place].shape[0])
        draft.inputs[place][row] = value(draft)
        return Truth(inputs=(place,), element=(row,), row=True)

    return plant


def whole(wanted: Wanted, change: Callable[[Draft, Any], Any]) -> Callable[[Draft], Truth | None]:
    """Change a whole input."""

    def plant(draft: Draft) -> Truth | None:
        place = draft.pick(wanted)
        if place is None:
            return None
        changed = change(draft, draft.inputs[place])
        if changed is None:
            return None
        draft.inputs[place] = changed
        return Truth(inputs=(place,))

    return plant


def transposed(_draft: Draft, tensor: Any) -> Any:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else None


def halved(draft: Draft, tensor: Any) -> Any:
    """The good call has the rounded numbers too, since a conversion back cannot restore what was cut off."""
    place = next(n for n, each in enumerate(draft.inputs) if each is tensor)
    draft.good[place].copy_(tensor.half())
    return tensor.half()


def stepped(_draft: Draft, tensor: Any) -> Any:
    return tensor.repeat_interleave(2, -1)[..., ::2]


def swapped(draft: Draft) -> Truth | None:
    """Two inputs of one type and shape change places."""
    kinds = [(given.shape, given.kind) for given in draft.model.inputs]
    pairs = [(i, j) for i, kind in enumerate(kinds) for j in range(i) if kinds[j] == kind]
    if not pairs:
        return None
    one, other = draft.chance.choice(pairs)
    draft.inputs[one], draft.inputs[other] = draft.inputs[other], draft.inputs[one]
    return Truth(inputs=(one, other))


def resized(size: Callable[[Draft, int, int], int]) -> Callable[[Draft], Truth | None]:
    """Give a dynamic dimension a size outside its range, in every input that has it."""

    def plant(draft: Draft) -> Truth | None:
        name = draft.chance.choice(list(draft.model.dimensions))
        dimension = draft.model.dimensions[name]
        wanted = size(draft, dimension.least, dimension.most)
        users = [place for place, given in enumerate(draft.model.inputs) if name in given.shape]
        for place in users:
            dim = draft.model.inputs[place].shape.index(name)
            tensor = draft.inputs[place]
            repeat = torch.arange(wanted, device=tensor.device) % tensor.shape[dim]
            draft.inputs[place] = tensor.index_select(dim, repeat)
        draft.expects_inputs = True
        return Truth(inputs=tuple(users))

    return plant


def one_resized(draft: Draft) -> Truth | None:
    """One input has another batch size than the others."""
    users = [
        place
        for place, given in enumerate(draft.model.inputs)
        if given.shape and given.shape[0] in ("B", "N", "E")
    ]
    if len(users) < 2:
        return None
    place = draft.chance.choice(users)
    draft.inputs[place] = draft.inputs[place][:-1].contiguous()
    return Truth(inputs=tuple(users))


def static_size(draft: Draft) -> Truth | None:
    """A dimension that was fixed at export is longer or shorter by one."""
    places = [
        (place, dim)
        for place, given in enumerate(draft.model.inputs)
        for dim, size in enumerate(given.shape)
        if isinstance(size, int)
    ]
    if not places:
        return None
    place, dim = draft.chance.choice(places)
    tensor = draft.inputs[place]
    shorter = tensor.narrow(dim, 0, tensor.shape[dim] - 1).contiguous()
    longer = torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim)
    draft.inputs[place] = draft.chance.choice([shorter, longer])
    return Truth(inputs=(place,), dimension=dim)


def one_missing(draft: Draft) -> Truth | None:
    """The last input is left out."""
    draft.inputs.pop()
    return Truth(kinds=("input", "call", "package", "script"))


def one_too_many(draft: Draft) -> Truth | None:
    """An input is given twice."""
    draft.inputs.append(draft.inputs[-1].clone())
    return Truth(kinds=("input", "call", "package", "script"))


def a_mask(given: Input) -> bool:
    return given.kind == "mask"


FAULTS = (
    Fault(
        "index_one_past_the_end",
        BOUND,
        value_at(lambda i: an_index(i) and i.name != "users", lambda _, i: i.high),
    ),
    Fault(
        "index_too_high",
        BOUND,
        value_at(an_index, lambda draft, i: i.high + 200 + draft.chance.randrange(60)),
    ),
    Fault(
        "index_negative",
        BOUND,
        value_at(an_index, lambda draft, i: -i.high - 201 - draft.chance.randrange(50)),
    ),
    Fault("index_minus_one", BOUND, value_at(lambda i: an_index(i) and i.low == 1, lambda _, i: -i.high)),
    Fault("index_huge", BOUND, value_at(an_index, lambda draft, _: draft.chance.choice([2**31 + 5, 2**40]))),
    Fault("double_input", MISMATCH, whole(a_float, lambda _, t: t.double())),
    Fault("half_input", MISMATCH, whole(a_float, halved)),
    Fault("int32_index", MISMATCH, whole(an_index, lambda _, t: t.int())),
    Fault("float_index", MISMATCH, whole(an_index, lambda _, t: t.float())),
    Fault("mask_as_float", MISMATCH, whole(a_mask, lambda _, t: t.float())),
    Fault("transposed_input", MISMATCH, whole(lambda i: len(i.shape) > 1, transposed)),
    Fault("stepped_input", MISMATCH, whole(lambda i: len(i.shape) > 1, stepped)),
    Fault("rank_too_high", MISMATCH, whole(lambda _: True, lambda _, t: t[None])),
    Fault("swapped_inputs", (*MISMATCH, *BOUND, "wrong_output", *VALUE), swapped),
    Fault("above_the_range", RANGE, resized(lambda draft, _, most: most + 1 + draft.chance.randrange(12))),
    Fault("below_the_range", RANGE, resized(lambda _, least, __: least - 1)),
    Fault("batches_differ", RANGE, one_resized),
    Fault("static_size", RANGE, static_size),
    Fault("input_missing", MISMATCH, one_missing),
    Fault("input_too_many", MISMATCH, one_too_many),
    Fault("row_masked_out", VALUE, row_of(a_mask, lambda _: False), lines_count=True),
    Fault("zero_divisor", VALUE, value_at(lambda i: i.divisor, lambda *_: 0.0), lines_count=True),
    Fault(
        "negative_under_a_root",
        VALUE,
        value_at(lambda i: not i.signed, lambda draft, _: -draft.chance.uniform(0.1, 3)),
        lines_count=True,
    ),
    Fault("nan_in_an_input", VALUE, value_at(a_float, lambda *_: math.nan)),
    Fault("minus_infinity_in_an_input", VALUE, value_at(a_float, lambda *_: -math.inf)),
    Fault(
        "overflow_of_a_value",
        (*VALUE, "wrong_output"),
        value_at(a_float, lambda draft, _: draft.chance.choice([1e30, -1e30])),
        lines_count=True,
    ),
    Fault(
        "constant_row",
        VALUE,
        row_of(lambda i: i.varied, lambda draft: draft.chance.choice([0.0, 1.0])),
        lines_count=True,
    ),
)
