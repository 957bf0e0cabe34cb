"""What the launches of one call read and wrote: records, and the first bad value.

Launches are read one by one and not kept: a call may have a hundred thousand.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Literal

from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.package.exported import unbounded_first
from mcp_server.package.launches import Role
from mcp_server.package.terms.sizes import index_at
from mcp_server.package.view import PackageView
from mcp_server.runtime.failure import Failure
from mcp_server.worker.report import OddElement

Phase = Literal["before", "after"]
Source = Literal["kernel", "input", "constant", "unset"]


class ArgumentValues(Record):
    """One argument of a launch in one phase; shape and stride in elements.

    `min`, `max` and `mean` cover the finite values. Counts are None if they were not taken. `outside` is an
    index beyond `bound`. `uninitialised`: nothing has written this memory yet, so its values mean nothing.
    """

    name: str
    when: Phase
    role: Role = "unknown"
    parameter: str = ""
    dtype: str = ""
    shape: list[int] | None = None
    stride: list[int] | None = None
    device: str = ""
    value: str = ""
    nan: int | None = None
    inf: int | None = None
    zero: int | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    checksum: str = ""
    non_finite: OddElement | None = None
    bound: str = ""
    outside: OddElement | None = None
    uninitialised: bool = False
    saved: Artifact | None = None

    @property
    def bad(self) -> bool:
        """Whether an initialised value is not finite, or is an index out of its bound."""
        return not self.uninitialised and bool(self.non_finite or self.outside)

    @property
    def perhaps_intended(self) -> bool:
        """Whether only minus infinity was seen, as in masks of attention."""
        return self.outside is None and self.non_finite is not None and self.non_finite.value == "-inf"


class LaunchValues(Record):
    """One launch. `launch` is its number in wrapper.cpp, None if unknown; `sequence` is its position in the
    call. `not_shown` names its tensors that were not observed.
    """

    kernel: str
    sequence: int
    launch: int | None = None
    arguments: list[ArgumentValues] = Field(default_factory=list)
    not_shown: list[str] = Field(default_factory=list)
    locations: list[ModelLocation] = Field(default_factory=list)

    @property
    def bad(self) -> bool:
        return any(argument.bad for argument in self.arguments)

    @property
    def surely_bad(self) -> bool:
        """Whether a value is bad that cannot be part of a mask."""
        return any(argument.bad and not argument.perhaps_intended for argument in self.arguments)


class FirstBad(Record):
    """The first bad value of the call, and where it came from.

    `kind` and `name` are its source: the launch's kernel, an input or a constant of the model, or a launch
    that was not shown (`producers`). `inputs_were_good` is None if some inputs of the launch were not seen.
    """

    what: Literal["non_finite", "outside"]
    kind: Source
    name: str
    argument: str
    launch: int | None
    kernel: str
    element: OddElement
    producers: list[int] = Field(default_factory=list)
    inputs_were_good: bool | None = None
    perhaps_intended: bool = False
    locations: list[ModelLocation] = Field(default_factory=list)
    summary: str


class KernelIO(Record):
    """The outcome of `dump_kernel_io`.

    `launches` lists those with bad values first, then the others in order, up to the requested number.
    `json_file` has all of them. `last_launch` is where the call ended, if it did not return. `stopped` means
    that it was ended on purpose, at the first bad value.
    """

    returned: bool
    stopped: bool = False
    first_bad: FirstBad | None = None
    last_launch: str = ""
    launches: list[LaunchValues] = Field(default_factory=list)
    seen: int = 0
    left_out: int = 0
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    json_file: Artifact | None = None
    log: Artifact
    cost: Cost


def find_first_bad(launches: Iterable[LaunchValues], model: PackageView) -> FirstBad | None:
    """The first bad value of these launches, in the order of the call.

    Values that may be an intended mask count only if nothing else is bad.
    """
    sure: LaunchValues | None = None
    perhaps: LaunchValues | None = None
    for launch in launches:
        if launch.bad:
            perhaps = perhaps or launch
        if launch.surely_bad:
            sure = sure or launch
    found = sure or perhaps
    if found is None:
        return None
    bad = [a for a in found.arguments if a.bad and not (sure and a.perhaps_intended)]
    received = next((argument for argument in bad if argument.when == "before"), bad[0])
    return _judged(found, received, model)


@dataclass(frozen=True)
class _Came:
    """Where a bad value came from. `rest` is what the summary says after the value."""

    element: OddElement
    locations: list[ModelLocation]
    rest: str
    kind: Source = "kernel"
    name: str = ""  # the kernel's name if empty
    producers: tuple[int, ...] = ()
    inputs_were_good: bool | None = None


def _judged(launch: LaunchValues, argument: ArgumentValues, model: PackageView) -> FirstBad:
    """Find the origin of a bad value: the launch that wrote it, or the source that the launch read."""
    received = argument.when == "before"
    came = (_received if received else _written)(launch, argument, model)
    element, producers, name = came.element, list(came.producers), came.name or launch.kernel
    number = "" if launch.launch is None else f"launch {launch.launch}, "
    found = f"{number}{launch.kernel}, {'got' if received else 'wrote'} {element.value}{element.place}"
    many = f" (one of {element.count:,})" if element.count and element.count > 1 else ""
    doubt = "; only minus infinity was seen, which may be a mask" if argument.perhaps_intended else ""
    return FirstBad(
        what="outside" if argument.outside is not None else "non_finite",
        kind=came.kind,
        name=_label(model, name),
        argument=argument.name,
        launch=producers[0] if producers else launch.launch,
        kernel=name if came.kind == "kernel" else launch.kernel,
        element=element,
        producers=producers,
        inputs_were_good=came.inputs_were_good,
        perhaps_intended=argument.perhaps_intended,
        locations=came.locations,
        summary=f"{found}{many}{came.rest}{doubt}",
    )


def _odd(argument: ArgumentValues) -> OddElement:
    element = argument.outside or argument.non_finite
    assert element is not None, "only bad arguments are judged"
    return element


def _received(launch: LaunchValues, argument: ArgumentValues, model: PackageView) -> _Came:
    """The source of a bad value that the launch read: an input, a constant, unset memory, or a launch."""
    element, locations = _odd(argument), launch.locations
    kind, name, producers = _origin(launch, argument.name, model)
    if kind == "constant":
        element = _of_constant(element, argument, name, model)
    origin = _label(model, name) if kind in ("input", "unset") else f"the {kind} {_label(model, name)}"
    if producers:
        locations = model.locations(producers[0])
        origin += f" (launch {producers[0]}, whose values were not shown)"
    needed = f" (needed: {argument.bound})" if argument.outside is not None and argument.bound else ""
    rest = f"{needed} in {argument.name}, which comes from {origin}"
    return _Came(element, locations, rest, kind, name, tuple(producers))


def _written(launch: LaunchValues, argument: ArgumentValues, model: PackageView) -> _Came:
    """The source of a bad value that the launch wrote, having read no value that was seen to be bad."""
    good, locations, known = None, launch.locations, model.launch(launch.launch)
    seen = {a.name for a in launch.arguments if a.when == "before" and not a.uninitialised}
    if known is not None:
        reads = {a.target for a in known.tensors if a.role in ("read", "read_write") and a.target}
        # Minus infinity that the launch read may be a mask; the launch may have made other bad values from
        # it.
        masked = any(a.bad for a in launch.arguments if a.when == "before")
        good = True if reads <= seen and not masked else None
        if argument.outside is None:
            locations = list(unbounded_first(model.provenance(known)).locations) or locations
    rest = f" to {argument.name}{', and its inputs were good' if good else ''}"
    return _Came(_odd(argument), locations, rest, inputs_were_good=good)


def _of_constant(element: OddElement, argument: ArgumentValues, name: str, model: PackageView) -> OddElement:
    """The element with its index in the constant, which a launch may read transposed."""
    constant = next((each for each in model.package.constants if each.name == name), None)
    if constant is None or not element.index or len(argument.stride or ()) != len(element.index):
        return element
    if prod(constant.shape) != prod(argument.shape or ()) or len(constant.stride) != len(constant.shape):
        return element  # a view of the constant: its first element is another one
    offset = sum(i * step for i, step in zip(element.index, argument.stride or (), strict=True))
    index = index_at(offset, constant.shape, constant.stride)
    return replace(element, index=list(index)) if index is not None else element


def _label(model: PackageView, name: str) -> str:
    """The user's name for a tensor: the place of an input in the arguments, a constant's full name."""
    inputs = {taken.name: taken.label for taken in model.package.inputs}
    constants = {constant.name: constant.fqn for constant in model.package.constants}
    return inputs.get(name) or constants.get(name) or name


def _origin(launch: LaunchValues, name: str, model: PackageView) -> tuple[Source, str, list[int]]:
    if launch.launch is None:
        return ("input" if name in {taken.name for taken in model.package.inputs} else "unset"), name, []
    writers = model.flow.writing_launches(name, launch.launch)
    if writers:
        return "kernel", model.wrapper.launches[writers[0]].kernel, writers
    behind = model.flow.backward(name, launch.launch)
    if behind.inputs:
        return "input", behind.inputs[0], []
    if behind.constants:
        return "constant", behind.constants[0], []
    return "unset", name, []


MODEL_LINE = re.compile(r"(?:.*[^:]:)?\d+")


@dataclass(frozen=True)
class Choice:
    """What to look at: everything if empty. If several are given, a launch must fit each of them.

    `kernels` are whole names in any case, or lines of the user's model: `FILE.py:LINE`, `LINE`.
    """

    launches: Sequence[int] = ()
    kernels: Sequence[str] = ()
    buffers: Sequence[str] = ()

    def checked(self, model: PackageView) -> Choice:
        """Return this choice with model lines resolved to launches, and names as the wrapper spells them.

        Raise ProblemError for an unknown launch or name, or a line from which no launch is known to come.
        """
        launches = model.wrapper.launches
        for number in self.launches:
            model.known_launch(number)
        known = {launch.kernel for launch in launches}
        tensors = {a.target for launch in launches for a in launch.tensors if a.target}
        lines = [name for name in self.kernels if MODEL_LINE.fullmatch(name)]
        kernels = [_spelled(name, known, "kernel") for name in self.kernels if name not in lines]
        buffers = [_spelled(name, tensors, "buffer") for name in self.buffers]
        if not lines:
            return Choice(self.launches, kernels, buffers)
        wanted = {launch.index for launch in launches if launch.kernel in kernels}
        wanted.update(*map(model.launches_of_line, lines))
        if self.launches:
            wanted &= set(self.launches)
        if not wanted:
            raise ProblemError("none of these launches is of that line", value=", ".join(lines))
        return Choice(sorted(wanted), (), buffers)

    def of(self, launch: LaunchValues) -> LaunchValues | None:
        """The launch with only the chosen buffers. None if the launch is not chosen."""
        if self.launches and launch.launch not in self.launches:
            return None
        if self.kernels and launch.kernel not in self.kernels:
            return None
        if not self.buffers:
            return launch
        kept = [argument for argument in launch.arguments if argument.name in self.buffers]
        return launch.model_copy(update={"arguments": kept}) if kept else None


def _spelled(name: str, known: Collection[str], what: str) -> str:
    lower = {one.lower(): one for one in known}
    if name.lower() in lower:
        return lower[name.lower()]
    near = get_close_matches(name.lower(), lower, n=5, cutoff=0.4) or sorted(lower)[:5]
    raise ProblemError(
        f"no such {what} in the package", value=name, allowed=", ".join(lower[n] for n in near)
    )


def unset_arguments(model: PackageView) -> dict[int, list[str]]:
    """Map each launch to the tensors that nothing has written before it: their values mean nothing."""
    found: dict[int, list[str]] = {}
    for launch in model.wrapper.launches:
        for name in {a.target for a in launch.tensors if a.target}:
            if model.flow.last_writers(name, launch.index):
                continue
            origin = model.flow.backward(name, launch.index)
            if not (origin.inputs or origin.constants):
                found.setdefault(launch.index, []).append(name)
    return found


@dataclass(frozen=True)
class Overview:
    """`shown` lists the first of `count` chosen launches, those with bad values before the others.

    `json_file` contains all chosen launches; `first_bad` and `last` cover all launches.
    """

    first_bad: FirstBad | None
    last: LaunchValues | None
    shown: list[LaunchValues]
    count: int
    json_file: Path


def overview(
    launches: Iterable[LaunchValues], model: PackageView, choice: Choice, folder: Path, most: int
) -> Overview:
    """Write `kernel_io.json` to `folder`, and keep at most `most` launches."""
    last: LaunchValues | None = None
    count = 0
    bad: list[LaunchValues] = []
    good: list[LaunchValues] = []
    json_file = folder / "kernel_io.json"

    def written() -> Iterator[LaunchValues]:
        """Yield all launches. Write each chosen one to the file."""
        nonlocal last, count
        with json_file.open("w", encoding="utf-8") as items:
            items.write("[")
            for last in launches:
                yield last
                chosen = choice.of(last)
                if chosen is None:
                    continue
                items.write((",\n" if count else "\n") + chosen.model_dump_json(indent=1))
                count += 1
                kind = bad if chosen.bad else good
                if len(kind) < most:
                    kind.append(chosen)
            items.write("\n]\n")

    first_bad = find_first_bad(written(), model)
    return Overview(first_bad, last, [*bad, *good][:most], count, json_file)
