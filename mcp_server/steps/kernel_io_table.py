"""Kernel I/O as a table for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcp_server.steps.kernel_io import ArgumentValues, BadElement, LaunchValues

HEAD = (
    "",
    "argument",
    "when",
    "role",
    "dtype",
    "shape",
    "nan",
    "inf",
    "zero",
    "min",
    "max",
    "mean",
    "first bad",
)


def table(launches: Iterable[LaunchValues]) -> str:
    """One block of aligned lines for each launch; `!` in front of an argument with bad values."""
    return "".join(map(block, launches))


def block(launch: LaunchValues) -> str:
    """The lines of one launch."""
    return "".join(line + "\n" for line in _block(launch))


def _block(launch: LaunchValues) -> Iterator[str]:
    number = "" if launch.launch is None else f"launch {launch.launch} "
    yield f"{number}{launch.kernel}"
    for location in launch.locations[:3]:
        yield f"    {location.file}:{location.line}: {location.code}"
    rows = [HEAD, *(_row(argument) for argument in launch.arguments)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if launch.not_shown:
        yield f"    not shown: {', '.join(launch.not_shown)}"
    yield ""


def _row(argument: ArgumentValues) -> tuple[str, ...]:
    shape = "x".join(map(str, argument.shape)) if argument.shape is not None else argument.value
    return (
        "!" if argument.bad else " ",
        argument.name,
        argument.when,
        "unset memory" if argument.uninitialised else argument.role,
        argument.dtype,
        shape or "scalar",
        *(_count(count) for count in (argument.nan, argument.inf, argument.zero)),
        *(_number(number) for number in (argument.min, argument.max, argument.mean)),
        _bad(argument.outside or argument.non_finite, argument.bound if argument.outside else ""),
    )


def _count(count: int | None) -> str:
    return "" if count is None else str(count)


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"


def _bad(element: BadElement | None, bound: str) -> str:
    if element is None:
        return ""
    where = f" at {element.index}" if element.index else ""
    return f"{element.value}{where}{f' not in {bound}' if bound else ''}"
