"""A fault is a change of a call, a model, a package or the program around it, with its answer."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.plant.models import Model


@dataclass
class Draft:
    """A program in the making. `inputs` are those of its call, `good` are those without the fault.

    A fault of the package replaces `package`. `top`, `loaded` and `called` are lines of the program: at its
    top, after the load, and after the call.
    """

    model: Model
    folder: Path
    package: Path
    weights: dict[str, Any]
    good: list[Any]
    inputs: list[Any]
    chance: random.Random
    device: str = "cpu"
    expects_inputs: bool = False  # the right outputs are those of eager on `inputs`, not on `good`
    clean_package: Path | None = None  # with the fault removed, if that is not `package`
    top: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)

    def pick(self, wanted: Callable[[Any], bool]) -> int | None:
        """The place of a random input whose description is `wanted`."""
        fitting = [place for place, given in enumerate(self.model.inputs) if wanted(given)]
        return self.chance.choice(fitting) if fitting else None

    def element(self, tensor: Any) -> tuple[int, ...]:
        return tuple(self.chance.randrange(size) for size in tensor.shape)


@dataclass(frozen=True)
class Truth:
    """The answer. An empty field means that there is nothing of its kind to name."""

    inputs: tuple[int, ...] = ()
    element: tuple[int, ...] | None = None  # in the input, or in the constant
    row: bool = False  # `element` is the start of the indices of many elements
    constant: str = ""
    dimension: int | None = None
    lines: tuple[int, ...] = ()  # of model.py; each is an answer
    kinds: tuple[str, ...] = ()  # of components that need no name
    call: int = 1


Plant = Callable[[Draft], Truth | None]


@dataclass(frozen=True)
class Fault:
    """`plant` changes the draft and returns the answer, or None if the model has no place for the fault.

    `categories` are all that are right; `forms` those in which the fault exists; `edits` names the edits of a
    model's source that it needs.
    """

    name: str
    categories: tuple[str, ...]
    plant: Plant
    forms: tuple[str, ...] = ("package", "script")
    edits: str = ""
    lines_count: bool = False  # a line of the model where the bad value starts is an answer too


def fault_rows() -> dict[str, Fault]:
    """Every fault by its name."""
    from benchmarks.plant.faults import calls, models, packages

    rows = (*calls.FAULTS, *models.FAULTS, *packages.FAULTS)
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: row for row in rows}
