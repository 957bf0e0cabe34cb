"""The first bad value of a call, and the launches that a reader is shown.

Launches are read one by one and not kept: a call may have a hundred thousand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from mcp_server.errors import ProblemError
from mcp_server.model import ModelLocation, PackageWorkload
from mcp_server.package.archive import Package
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.launches import Launch
from mcp_server.package.provenance import Provenance, read_provenance, unbounded_first
from mcp_server.package.view import view_package
from mcp_server.package.wrapper import Wrapper
from mcp_server.tools.kernel_io import ArgumentValues, BadElement, FirstBad, LaunchValues, block


@dataclass(frozen=True)
class Model:
    """A package and its wrapper, with the model lines and names behind them."""

    package: Package
    wrapper: Wrapper

    @property
    def flow(self) -> Dataflow:
        return self.package.flow

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
        """An input by the caller's path to it, a constant by its name in the model."""
        inputs = {taken.name: taken.label for taken in self.package.inputs}
        constants = {constant.name: constant.fqn for constant in self.package.constants}
        return inputs.get(name) or constants.get(name) or name


def launch_values(
    model: Model, number: int | None, kernel: str, sequence: int, arguments: list[ArgumentValues]
) -> LaunchValues:
    """What was seen of a launch, with the tensors that were not, and its model lines."""
    known = model.launch(number)
    tensors = {a.target for a in known.tensors if a.target} if known else set()
    return LaunchValues(
        kernel=kernel,
        sequence=sequence,
        launch=number,
        arguments=arguments,
        not_shown=sorted(tensors - {a.name for a in arguments}),
        locations=model.locations(number),
    )


def model_of(workload: PackageWorkload) -> Model:
    """The package of a call with its wrapper."""
    view = view_package(workload.package, workload.model_name)
    return Model(view.package, view.wrapper)


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
        """The first bad value of the launches so far."""
        launch = self._sure or self._perhaps
        if launch is None:
            return None
        bad = [a for a in launch.arguments if a.bad and not (self._sure and a.perhaps_intended)]
        received = next((argument for argument in bad if argument.when == "before"), None)
        if received is not None:
            return _received(launch, received, self._model)
        return _computed(launch, bad[0], self._model)


def _computed(launch: LaunchValues, argument: ArgumentValues, model: Model) -> FirstBad:
    """The launch wrote it while none of the values that it read was seen to be bad."""
    known = model.launch(launch.launch)
    seen = {a.name for a in launch.arguments if a.when == "before" and not a.uninitialised}
    reads = [a for a in known.tensors if a.role in ("read", "read_write") and a.target] if known else []
    good = True if known is not None and {a.target for a in reads} <= seen else None
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
        summary=f"{_sentence(launch, 'wrote', argument)} to {argument.name}{qualified}{_doubt(argument)}",
    )


def _received(launch: LaunchValues, argument: ArgumentValues, model: Model) -> FirstBad:
    """The launch read it: from a launch that was not shown, or from outside."""
    kind, name, producers = _origin(launch, argument.name, model)
    element, what = _element(argument)
    origin = model.label(name) if kind in ("input", "unset") else f"the {kind} {model.label(name)}"
    if producers:
        origin += f" (launch {producers[0]}, whose values were not shown)"
    outside = argument.outside is not None and argument.bound
    needed = f" (needed: {argument.bound})" if outside else ""
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
        summary=f"{_sentence(launch, 'got', argument)}{needed} in {argument.name}, "
        f"which comes from {origin}{_doubt(argument)}",
    )


def _origin(
    launch: LaunchValues, name: str, model: Model
) -> tuple[Literal["kernel", "input", "constant", "unset"], str, list[int]]:
    if launch.launch is None:
        return ("input" if name in {taken.name for taken in model.package.inputs} else "unset"), name, []
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


def _sentence(launch: LaunchValues, verb: str, argument: ArgumentValues) -> str:
    """`launch 3, cpp_fused_add, wrote nan at [0, 1], 4 in all`."""
    element, _ = _element(argument)
    number = "" if launch.launch is None else f"launch {launch.launch}, "
    where = f" at {element.index}" if element.index else ""
    many = f", {element.count} in all" if element.count and element.count > 1 else ""
    return f"{number}{launch.kernel}, {verb} {element.value}{where}{many}"


def _doubt(argument: ArgumentValues) -> str:
    return "; only minus infinity was seen, which may be a mask" if argument.perhaps_intended else ""


MODEL_LINE = re.compile(r"(?:(?P<file>.*[^:]):)?(?P<line>\d+)")


@dataclass(frozen=True)
class Choice:
    """What to look at; an empty choice means everything, and of several kinds each restricts the others.

    `kernels` are whole names in any case, or lines of the user's model: `FILE.py:LINE`, `LINE`.
    """

    launches: Sequence[int] = ()
    kernels: Sequence[str] = ()
    buffers: Sequence[str] = ()

    def checked(self, model: Model) -> Choice:
        """The same with launches for model lines, and names as the wrapper spells them.

        Raises ProblemError for an unknown launch or name, and for a line of which no launch is known to come.
        """
        launches = model.wrapper.launches
        for number in self.launches:
            if not 0 <= number < len(launches):
                raise ProblemError("no such launch", value=number, allowed=f"0 to {len(launches) - 1}")
        known = {launch.kernel for launch in launches}
        tensors = {a.target for launch in launches for a in launch.tensors if a.target}
        lines = [name for name in self.kernels if MODEL_LINE.fullmatch(name)]
        kernels = [_spelled(name, known, "kernel") for name in self.kernels if name not in lines]
        buffers = [_spelled(name, tensors, "buffer") for name in self.buffers]
        if not lines:
            return Choice(self.launches, kernels, buffers)
        wanted = {number for line in lines for number in _launches_at(line, model)}
        wanted |= {launch.index for launch in launches if launch.kernel in kernels}
        if self.launches:
            wanted &= set(self.launches)
        if not wanted:
            raise ProblemError("none of these launches is of that line", value=", ".join(lines))
        return Choice(sorted(wanted), (), buffers)

    def of(self, launch: LaunchValues) -> LaunchValues | None:
        """The launch with the chosen buffers only; None when it is not chosen."""
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


def _launches_at(line: str, model: Model) -> list[int]:
    """Numbers of the launches that come from `FILE:LINE` or `LINE`; FILE may be the end of a path.

    Raises ProblemError when there is none, with lines that launches come from.
    """
    asked = MODEL_LINE.fullmatch(line)
    assert asked is not None, "only model lines are looked up"
    file, number = (asked["file"] or "").removeprefix("./"), int(asked["line"])
    places = [(each.index, place) for each in model.wrapper.launches for place in model.locations(each.index)]
    found = [
        index
        for index, place in places
        if place.line == number and (not file or f"/{place.file}".endswith(f"/{file}"))
    ]
    if found:
        return found
    known = list(dict.fromkeys(f"{place.file}:{place.line}" for _, place in places))
    raise ProblemError(
        "no launch is known to come from that line",
        value=line,
        allowed=", ".join(known[:8]) or "compile with INDUCTOR_PROVENANCE=1 (torch >= 2.9) to know lines",
    )


@dataclass(frozen=True)
class Launches:
    """Launches in the order of the call, read anew from a file by each iteration."""

    read: Callable[[], Iterable[LaunchValues]]

    def __iter__(self) -> Iterator[LaunchValues]:
        return iter(self.read())

    @property
    def last(self) -> LaunchValues | None:
        """The last launch that was seen."""
        last = None
        for launch in self:
            last = launch
        return last


@dataclass(frozen=True)
class Overview:
    """`shown` are the first chosen launches, those with bad values before the others, of `count` chosen ones.

    `table` and `json_file` hold all chosen launches; `first_bad` and `last` are of all launches.
    """

    first_bad: FirstBad | None
    last: LaunchValues | None
    shown: list[LaunchValues]
    count: int
    table: Path
    json_file: Path


def overview(
    launches: Iterable[LaunchValues], model: Model, choice: Choice, folder: Path, most: int
) -> Overview:
    """Write `kernel_io.txt` and `kernel_io.json` into `folder`, and keep at most `most` launches."""
    search, last, count = BadSearch(model), None, 0
    bad: list[LaunchValues] = []
    good: list[LaunchValues] = []
    table, json_file = folder / "kernel_io.txt", folder / "kernel_io.json"
    with table.open("w", encoding="utf-8") as rows, json_file.open("w", encoding="utf-8") as items:
        items.write("[")
        for last in launches:
            search.take(last)
            chosen = choice.of(last)
            if chosen is None:
                continue
            rows.write(block(chosen))
            items.write((",\n" if count else "\n") + chosen.model_dump_json(indent=1))
            count += 1
            kind = bad if chosen.bad else good
            if len(kind) < most:
                kind.append(chosen)
        items.write("\n]\n")
    return Overview(search.found, last, [*bad, *good][:most], count, table, json_file)
