"""What the launches of one call read and wrote, as records and as a table for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.package.launches import Role
from mcp_server.tools.failure import Failure

Phase = Literal["before", "after"]
Backend = Literal["probes", "printer"]


class BadElement(Record):
    """The first bad element in row-major order: logical index (empty if unknown), value, how many are bad."""

    index: list[int] = Field(default_factory=list)
    value: str
    count: int | None = None

    @property
    def place(self) -> str:
        return f" at {self.index}" if self.index else ""


class ArgumentValues(Record):
    """One argument of a launch in one phase; shape and stride in elements.

    `min`, `max` and `mean` are of the finite values (probes), or as printed in float32 (printer). Counts are
    None where nothing counted them. `outside` is an index beyond `bound`. `uninitialised` marks memory that
    nothing has written yet: its values mean nothing.
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
    non_finite: BadElement | None = None
    bound: str = ""
    outside: BadElement | None = None
    uninitialised: bool = False
    saved: Artifact | None = None

    @property
    def bad(self) -> bool:
        """Whether a value that counts is not finite, or an index out of its bound."""
        return not self.uninitialised and bool(self.non_finite or self.outside)

    @property
    def perhaps_intended(self) -> bool:
        """Only minus infinity was seen: masks of attention look like this."""
        return self.outside is None and self.non_finite is not None and self.non_finite.value == "-inf"


class LaunchValues(Record):
    """One launch. `launch` is its number in wrapper.cpp, None where it is not known; `sequence` its
    place in the call. `not_shown` names tensors of the launch that nothing showed.
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
        """Bad by more than what may be a mask."""
        return any(argument.bad and not argument.perhaps_intended for argument in self.arguments)


class FirstBad(Record):
    """The first bad value of the call, and where it came from.

    `kind` and `name` are its source: the launch's own kernel, an input or a constant of the model, or
    a launch that was not shown (`producers`). `inputs_were_good` is None when not all that it reads was seen.
    """

    what: Literal["non_finite", "outside"]
    kind: Literal["kernel", "input", "constant", "unset"]
    name: str
    argument: str
    launch: int | None
    kernel: str
    element: BadElement
    producers: list[int] = Field(default_factory=list)
    inputs_were_good: bool | None = None
    perhaps_intended: bool = False
    locations: list[ModelLocation] = Field(default_factory=list)
    summary: str


class KernelIO(Record):
    """The outcome of `dump_kernel_io`.

    `launches` holds the ones with bad values first, then the others in order, at most as many as asked for;
    all of them are in `json_file` and, as a table, in `table`. `last_launch` is where the call ended, if it
    did not return; `stopped` that it was ended on purpose, at the first bad value.
    """

    backend: Backend
    why: str
    returned: bool
    stopped: bool = False
    first_bad: FirstBad | None = None
    last_launch: str = ""
    launches: list[LaunchValues] = Field(default_factory=list)
    seen: int = 0
    left_out: int = 0
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    table: Artifact | None = None
    json_file: Artifact | None = None
    log: Artifact
    cost: Cost


def measured(event: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ArgumentValues` in an event, but for `value` and `saved`, which are of other types."""
    names = ArgumentValues.model_fields.keys() - {"value", "saved"}
    return {name: event[name] for name in names if event.get(name) is not None}


_FIGURES = ("nan", "inf", "zero", "min", "max", "mean")
HEAD = ("", "argument", "when", "role", "dtype", "shape", *_FIGURES, "first bad")


def block(launch: LaunchValues) -> str:
    """A launch as aligned lines; `!` in front of an argument with bad values."""
    number = "" if launch.launch is None else f"launch {launch.launch} "
    lines = [f"{number}{launch.kernel}"]
    lines += [f"    {place.file}:{place.line}: {place.code}" for place in launch.locations[:3]]
    rows = [HEAD, *(_row(argument) for argument in launch.arguments)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    if launch.not_shown:
        lines.append(f"    not shown: {', '.join(launch.not_shown)}")
    return "\n".join([*lines, "", ""])


def _row(argument: ArgumentValues) -> tuple[str, ...]:
    shape = "x".join(map(str, argument.shape)) if argument.shape is not None else argument.value
    element = argument.outside or argument.non_finite
    bad = f"{element.value}{element.place}" if element is not None else ""
    if argument.outside is not None and argument.bound:
        bad += f" not in {argument.bound}"
    return (
        "!" if argument.bad else " ",
        argument.name,
        argument.when,
        "unset memory" if argument.uninitialised else argument.role,
        argument.dtype,
        shape or "scalar",
        *("" if count is None else str(count) for count in (argument.nan, argument.inf, argument.zero)),
        *("" if n is None else f"{n:.6g}" for n in (argument.min, argument.max, argument.mean)),
        bad,
    )
