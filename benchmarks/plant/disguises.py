"""What is laid over a fault to mislead: harmless deviations, calls before it, a warning of something else."""

from __future__ import annotations

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
    """One index is the last that is valid."""
    place = draft.pick(lambda given: given.kind == "index")
    if place is None:
        return ""
    where = draft.element(draft.good[place])
    value = int(draft.model.inputs[place].high) - 1
    draft.good[place][where] = draft.inputs[place][where] = value
    return f"input {place} has {value} at {list(where)}, the last that is valid"


def large_value(draft: Draft) -> str:
    """One value of an input is far from the others, and harmless."""
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
    """0 to 2 disguises, before the fault is planted."""
    chosen = draft.chance.sample(DISGUISES, draft.chance.choice([0, 0, 1, 1, 2]))
    return [told for disguise in chosen if (told := disguise(draft))]
