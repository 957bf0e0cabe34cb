"""Healthy programs, and what is laid over a fault to mislead: deviations, calls, a warning."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.plant.faults import Draft

Disguise = Callable[[Draft], str]


def unaligned(draft: Draft) -> str:
    """One input is a view that does not start at a multiple of 16 bytes."""
    place = draft.chance.randrange(len(draft.good))
    draft.inputs[place] = shifted(draft.inputs[place])
    draft.good[place] = shifted(draft.good[place])
    return f"input {place} is an unaligned view"


def shifted(tensor: Any) -> Any:
    base = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    view = base[1:].view(tensor.shape)
    view.copy_(tensor)
    return view


def last_row(draft: Draft) -> str:
    """One index is the last valid one."""
    place = draft.pick(lambda given: given.kind == "index")
    if place is None:
        return ""
    where = draft.element(draft.good[place])
    value = int(draft.model.inputs[place].high) - 1
    draft.good[place][where] = draft.inputs[place][where] = value
    return f"input {place} has {value} at {list(where)}, the last that is valid"


def large_value(draft: Draft) -> str:
    """One value of an input is far from the others but harmless."""
    place = draft.pick(lambda given: given.kind == "normal")
    if place is None:
        return ""
    where = draft.element(draft.good[place])
    draft.good[place][where] = draft.inputs[place][where] = 30.0
    return f"input {place} has 30 at {list(where)}"


def warned(draft: Draft) -> str:
    """The program's log speaks of memory."""
    draft.top.append('print("warning: low on memory, 3 allocations were retried", file=sys.stderr)')
    return "a warning of low memory"


DISGUISES: tuple[Disguise, ...] = (unaligned, last_row, large_value, warned)


def lay_over(draft: Draft) -> list[str]:
    """Lay on 0 to 2 disguises, before the fault is planted."""
    chosen = draft.chance.sample(DISGUISES, draft.chance.choice([0, 0, 1, 1, 2]))
    return [told for disguise in chosen if (told := disguise(draft))]


def plain(_draft: Draft) -> None:
    """Nothing special."""


def all_unaligned(draft: Draft) -> None:
    draft.inputs[:] = [shifted(tensor) for tensor in draft.inputs]


def bounds(draft: Draft) -> None:
    """Every index is the first or the last valid one."""
    for place, given in enumerate(draft.model.inputs):
        if given.kind == "index":
            tensor = draft.inputs[place]
            last = torch.rand(tensor.shape, device=tensor.device) > 0.5
            draft.inputs[place] = torch.where(last, int(given.high) - 1, int(given.low))


def at_the_edge_of_the_range(draft: Draft) -> None:
    """A dynamic dimension has the largest size that was exported."""
    name = draft.chance.choice(list(draft.model.dimensions))
    most = draft.model.dimensions[name].most
    for place, given in enumerate(draft.model.inputs):
        if name in given.shape:
            dim = given.shape.index(name)
            repeat = torch.arange(most) % draft.inputs[place].shape[dim]
            draft.inputs[place] = draft.inputs[place].index_select(dim, repeat)


def rounded(draft: Draft) -> None:
    """The expected outputs were computed elsewhere, and differ by rounding."""
    draft.top.append("torch.backends.mkldnn.enabled = False")


def nan_is_meant(draft: Draft) -> None:
    """A missing measurement is NaN in an input and in the outputs from it, as the program expects."""
    place = draft.pick(lambda given: given.kind == "normal")
    if place is not None:
        draft.inputs[place][draft.element(draft.inputs[place])] = float("nan")
        draft.called.append("# Rows with a missing measurement are NaN, and are left out later.")


def caught(draft: Draft) -> None:
    """The program makes a call that cannot work, catches the error and goes on."""
    draft.loaded += [
        "try:",
        "    model(torch.zeros(1))",
        "except RuntimeError:",
        '    print("no warm-up", file=sys.stderr)',
    ]


Healthy = Callable[[Draft], None]
HEALTHY: dict[str, Healthy] = {
    row.__name__: row
    for row in (plain, all_unaligned, bounds, at_the_edge_of_the_range, rounded, nan_is_meant, caught)
}


def equal_nan(name: str) -> bool:
    """Whether the program's check accepts NaN where NaN is expected."""
    return name == nan_is_meant.__name__


def outputs_of(found: Any) -> list[Any]:
    """Outputs as a list."""
    return list(found) if isinstance(found, (list, tuple)) else [found]
