"""Each launch of a package beside the same launch of its program, on the tensors that the package gave it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from .compare import compare, tolerance
from .events import LaunchVerified
from .probes import AFTER, ROLES, Event, arguments, strided
from .process import capturing
from .protocol import LaunchAlone
from .report import Report
from .tensors import cut_out, widest

Tensors = dict[tuple[str, int], torch.Tensor]
"""The tensors of a launch by variable and turn, as `Place` counts them."""


class LaunchByLaunch:
    """A subscriber of probes. `known` are the names that an expression uses besides tensors: sizes, `self`.

    Event `launch_verified` for each launch.
    """

    def __init__(
        self, launches: list[LaunchAlone], module: ModuleType, known: dict[str, Any], report: Report
    ) -> None:
        self.launches = {each["launch"]: each for each in launches}
        self.names = {**vars(module), **known}
        self.report = report
        self.given: dict[tuple[int, int], Tensors] = {}

    def take(self, event: Event) -> bool:
        launch = self.launches.get(int(event.launch))
        if launch is None or capturing():
            return False
        key = (int(event.run), int(event.sequence))
        if event.phase != AFTER:
            wanted = {tuple(place) for place in launch["takes"].values()}
            found, _ = tensors_of(event)
            self.given[key] = {place: cut_out(each) for place, each in found.items() if place in wanted}
        elif key in self.given:
            self.report.event(self._verified(launch, self.given.pop(key), event))
        return False

    def _verified(self, launch: LaunchAlone, given: Tensors, event: Event) -> LaunchVerified:
        number = launch["launch"]
        try:
            made = self._made(launch, given)
        except Exception as error:  # whatever the program raises here
            return LaunchVerified(number, "not_run", why=f"{type(error).__name__}: {error}"[:300])
        after, written = tensors_of(event)
        found = [
            compared(number, place[0], after[place], made[place])
            for place in written
            if place in made and place in after
        ]
        if not found:
            return LaunchVerified(number, "not_run", why="nothing that it wrote is in the program")
        return max(found, key=lambda each: (RANKS.index(each.agreement), each.largest or 0.0))

    def _made(self, launch: LaunchAlone, given: Tensors) -> Tensors:
        """What the launch makes anew, and all that it was given, as it then is."""
        missing = [place[0] for place in launch["takes"].values() if tuple(place) not in given]
        if missing:
            raise LookupError(f"the probes did not show {missing[0]}")
        names = {name: given[place[0], place[1]] for name, place in launch["takes"].items()}
        with torch.no_grad():
            result = eval(launch["expression"], {**self.names, **names})
        results = result if isinstance(result, (tuple, list)) else [result]
        return {**given, **{(name, 0): each for name, each in zip(launch["gives"], results)}}


RANKS = ("equal", "rounding", "different")


def compared(launch: int, name: str, want: torch.Tensor, got: torch.Tensor) -> LaunchVerified:
    """To rounding: within the tolerance of the type, relative to what is usual in the tensor."""
    got = got.to(want.device)
    if got.shape != want.shape and got.numel() == want.numel():
        got = got.reshape(want.shape)  # the same elements, which the program has in other dimensions
    if want.shape == got.shape and same_bits(want, got):
        return LaunchVerified(launch, "equal", name)
    relative = tolerance(want.dtype)[0]
    finite = widest(want)[torch.isfinite(want)]
    usual = float(finite.abs().square().mean().sqrt()) if finite.numel() else 0.0
    pair = compare(want, got, (relative, relative * usual))
    why = "" if want.shape == got.shape else f"shape {pair.shape[1]}, not {pair.shape[0]}"
    return LaunchVerified(launch, "rounding" if pair.equal else "different", name, pair.max_abs, why)


def same_bits(want: torch.Tensor, got: torch.Tensor) -> bool:
    if want.dtype != got.dtype:
        return False
    return bool(((want == got) | ((want != want) & (got != got))).all())


def tensors_of(event: Event) -> tuple[Tensors, list[tuple[str, int]]]:
    """The tensors of a launch, and the places of those that it writes to."""
    found: Tensors = {}
    written = []
    turns: dict[str, int] = {}
    for argument in arguments(event):
        if argument.kind != 1:
            continue
        name = argument.name.decode()
        place = (name, turns.get(name, 0))
        turns[name] = place[1] + 1
        if ROLES.get(argument.role) != "read":
            written.append(place)
        tensor = strided(argument)
        if tensor is not None:
            found[place] = tensor
    return found, written
