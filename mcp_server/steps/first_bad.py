"""The first bad value of a call, and who brought it: kernel, input, constant, or a launch not shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mcp_server.model import ModelLocation
from mcp_server.package.archive import Package
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.launches import Launch
from mcp_server.package.provenance import Provenance, read_provenance
from mcp_server.package.relevance import unbounded_first
from mcp_server.package.wrapper import Wrapper
from mcp_server.steps.kernel_io import ArgumentValues, BadElement, FirstBad, LaunchValues


@dataclass(frozen=True)
class Model:
    """What the judgement needs to know of the package."""

    package: Package
    wrapper: Wrapper

    @cached_property
    def flow(self) -> Dataflow:
        return Dataflow(self.wrapper.run)

    def launch(self, number: int | None) -> Launch | None:
        """The launch of that number, as wrapper.cpp has it."""
        if number is None or number >= len(self.wrapper.launches):
            return None
        return self.wrapper.launches[number]

    def locations(self, number: int | None) -> list[ModelLocation]:
        """Lines of the user's model that the launch comes from, as far as the package knows."""
        return list(self._provenance(number).locations)

    def makers(self, number: int | None) -> list[ModelLocation]:
        """The same lines, first those whose operator can make a NaN or an infinity of finite values."""
        return list(unbounded_first(self._provenance(number)).locations)

    def _provenance(self, number: int | None) -> Provenance:
        launch = self.launch(number)
        return read_provenance(launch, self.package.kernel_information) if launch else Provenance("none")

    def label(self, name: str) -> str:
        """An input as the caller knows it, a constant by its name in the model."""
        inputs = {given.name: given.label for given in self.package.inputs}
        constants = {constant.name: constant.fqn for constant in self.package.constants}
        return inputs.get(name) or constants.get(name) or name


def find_first_bad(launches: Iterable[LaunchValues], model: Model) -> FirstBad | None:
    """The first bad value of these launches, in the order of the call."""
    search = BadSearch(model)
    for launch in launches:
        search.take(launch)
    return search.found


class BadSearch:
    """Looks at launches in the order of the call, and keeps the one that counts.

    Values that may be an intended mask count only if nothing else is bad.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._sure: LaunchValues | None = None
        self._perhaps: LaunchValues | None = None

    def take(self, launch: LaunchValues) -> None:
        """The next launch."""
        if self._sure is not None or not launch.bad:
            return
        if launch.surely_bad:
            self._sure = launch
        self._perhaps = self._perhaps or launch

    @property
    def found(self) -> FirstBad | None:
        """What the launches so far tell."""
        launch = self._sure or self._perhaps
        if launch is None:
            return None
        bad = [a for a in launch.arguments if a.bad and not (self._sure and a.perhaps_intended)]
        received = [argument for argument in bad if argument.when == "before"]
        if received:
            return _received(launch, received[0], self._model)
        return _made(launch, bad[0], self._model)


def _made(launch: LaunchValues, argument: ArgumentValues, model: Model) -> FirstBad:
    """The launch wrote it while none of the values that it read was seen to be bad."""
    good = _inputs_were_good(launch, model)
    qualified = ", and its inputs were good" if good else "; not all of its inputs were seen"
    element, what = _element(argument)
    return FirstBad(
        what=what,
        kind="kernel",
        name=launch.kernel,
        argument=argument.name,
        launch=launch.launch,
        kernel=launch.kernel,
        element=element,
        inputs_were_good=good,
        perhaps_intended=argument.perhaps_intended,
        locations=(what == "non_finite" and model.makers(launch.launch)) or launch.locations,
        summary=f"{_place(launch)} wrote {_told(element)} to {argument.name}{qualified}{_doubt(argument)}",
    )


def _inputs_were_good(launch: LaunchValues, model: Model) -> bool | None:
    known = model.launch(launch.launch)
    if known is None:
        return None
    seen = {a.name for a in launch.arguments if a.when == "before" and not a.uninitialised}
    needed = {a.target for a in known.tensors if a.role in ("read", "read_write") and a.target}
    return True if needed <= seen else None


def _received(launch: LaunchValues, argument: ArgumentValues, model: Model) -> FirstBad:
    """The launch got it: from a launch that was not shown, or from outside."""
    kind, name, producers = _origin(launch, argument.name, model)
    element, what = _element(argument)
    origin = model.label(name) if kind in ("input", "unset") else f"the {kind} {model.label(name)}"
    if producers:
        origin += f" (launch {producers[0]}, whose values were not shown)"
    return FirstBad(
        what=what,
        kind=kind,
        name=model.label(name),
        argument=argument.name,
        launch=producers[0] if producers else launch.launch,
        kernel=name if kind == "kernel" else launch.kernel,
        element=element,
        producers=producers,
        perhaps_intended=argument.perhaps_intended,
        locations=model.locations(producers[0]) if producers else launch.locations,
        summary=f"{_place(launch)} got {_told(element)}{_against(argument)} in {argument.name}, "
        f"which comes from {origin}{_doubt(argument)}",
    )


def _origin(
    launch: LaunchValues, name: str, model: Model
) -> tuple[Literal["kernel", "input", "constant", "unset"], str, list[int]]:
    if launch.launch is None:
        return ("input" if name in {given.name for given in model.package.inputs} else "unset"), name, []
    writers = [s.launch for s in model.flow.last_writers(name, launch.launch) if s.launch is not None]
    if writers:
        return "kernel", model.wrapper.launches[writers[0]].kernel, writers
    behind = model.flow.backward(name, launch.launch)
    if behind.inputs:
        return "input", behind.inputs[0], []
    if behind.constants:
        return "constant", behind.constants[0], []
    return "unset", name, []


def _element(argument: ArgumentValues) -> tuple[BadElement, Literal["non_finite", "outside"]]:
    if argument.outside is not None:
        return argument.outside, "outside"
    assert argument.non_finite is not None, "only bad arguments are judged"
    return argument.non_finite, "non_finite"


def _place(launch: LaunchValues) -> str:
    number = "" if launch.launch is None else f"launch {launch.launch}, "
    return f"{number}{launch.kernel},"


def _told(element: BadElement) -> str:
    where = f" at {element.index}" if element.index else ""
    many = f", {element.count} in all" if element.count and element.count > 1 else ""
    return f"{element.value}{where}{many}"


def _against(argument: ArgumentValues) -> str:
    return f" (needed: {argument.bound})" if argument.outside is not None and argument.bound else ""


def _doubt(argument: ArgumentValues) -> str:
    return (
        "; only minus infinity was seen, which a mask would hold on purpose"
        if argument.perhaps_intended
        else ""
    )
