"""What a package compiled with the intermediate value printer wrote, as typed records.

Level 1 names the files that it saved, level 2 prints statistics and small tensors, level 3 only launches
(`log.py`). Formats: torch 2.8-2.15 (facts: `_inductor/codegen/debug_utils.py`, aoti_torch/utils).
Known defects that are taken care of: scalars end in a literal backslash-n and no newline; the path of level
1 lacks a separator up to 2.14; an output is printed before its launch although nothing wrote it yet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

When = Literal["before_launch", "after_launch", "aoti_model_inputs"]

MAX_VALUES = 64
MAX_FINITE = 2_000
MAX_NON_FINITE = 2_000

_HEADER = re.compile(
    r"\[ {1,2}(?P<when>before_launch|after_launch|aoti_model_inputs) - "
    r"(?P<what>[^\[\]]+?) {1,2}\](?P<tensor>:)?"
)
_STATISTIC = re.compile(
    r"(?P<name>Number of elements|Dtype|Mean value|Min value|Max value|Device|Size|Stride|Is contiguous)"
    r": ?(?P<value>.*)"
)
_END = re.compile(r"Requires grad: ")
_VALUE = re.compile(r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)", re.IGNORECASE)
_SAVED = re.compile(r"aoti_torch_save_tensor_handle: Saved tensor to (?P<path>.+\.pt)")
_FILE = re.compile(r"(?P<when>before_launch|after_launch)_(?P<what>.+)_(?P<device>[a-z]+(?::\d+)?)\.pt$")
_BUFFER = re.compile(r"(?P<kernel>.+?)_(?P<argument>(?:buf\d+\w*|arg\d+_\d+))$")


@dataclass(frozen=True)
class PrintedTensor:
    """One tensor as printed at level 2; sizes and strides in elements.

    `mean`, `minimum` and `maximum` were computed in float32; None where the printer gives none (empty or
    complex tensors). `uninitialised` marks an output before the launch that writes it: its values are noise.
    """

    when: When
    kernel: str
    argument: str
    line: int
    elements: int | None = None
    dtype: str = ""
    mean: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    device: str = ""
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    contiguous: bool | None = None
    values: tuple[float, ...] = ()
    uninitialised: bool = False

    @property
    def non_finite(self) -> bool:
        """Whether a value that counts is NaN or infinite."""
        numbers = (self.mean, self.minimum, self.maximum, *self.values)
        bad = any(number is not None and not math.isfinite(number) for number in numbers)
        return bad and not self.uninitialised


@dataclass(frozen=True)
class PrintedScalar:
    """A scalar argument; the printer writes floats and bools as integers, so only `text` is certain."""

    when: When
    kernel: str
    argument: str
    text: str
    line: int


@dataclass(frozen=True)
class SavedTensor:
    """A file of level 1. Later calls overwrite it, and so does a second launch of the same kernel."""

    path: str
    when: When
    kernel: str
    argument: str
    device: str
    line: int


Printed = PrintedTensor | PrintedScalar | SavedTensor


@dataclass(frozen=True)
class PrinterReport:
    """All records of a run, non-finite tensors first, each in the order of the run."""

    non_finite: tuple[PrintedTensor, ...] = ()
    tensors: tuple[PrintedTensor, ...] = ()
    scalars: tuple[PrintedScalar, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    dropped: int = 0


def summarise(lines: Iterable[str], kernels: Collection[str] = ()) -> PrinterReport:
    """Read the whole output of a run in bounded memory. `kernels` helps to split level 1's file names."""
    kept: dict[type[Printed], list[Printed]] = {PrintedTensor: [], PrintedScalar: [], SavedTensor: []}
    bad: list[PrintedTensor] = []
    dropped = 0
    for record in read_printer(lines):
        is_bad = isinstance(record, PrintedTensor) and record.non_finite
        place = bad if is_bad else kept[type(record)]
        if len(place) >= (MAX_NON_FINITE if is_bad else MAX_FINITE):
            dropped += 1
        else:
            place.append(record)  # type: ignore[arg-type]
    saved = [record for record in kept[SavedTensor] if isinstance(record, SavedTensor)]
    return PrinterReport(
        tuple(bad),
        tuple(record for record in kept[PrintedTensor] if isinstance(record, PrintedTensor)),
        tuple(record for record in kept[PrintedScalar] if isinstance(record, PrintedScalar)),
        tuple(_named(saved, kernels)),
        dropped,
    )


def read_printer(lines: Iterable[str]) -> Iterator[Printed]:
    """The records of levels 1 and 2 in the order of the output."""
    reader = _Reader()
    for number, line in enumerate(lines, start=1):
        yield from reader.feed(line.rstrip("\r\n"), number)
    yield from reader.finish()


class _Reader:
    def __init__(self) -> None:
        self._open: PrintedTensor | None = None
        self._values: list[float] = []
        self._written: set[str] = set()

    def feed(self, line: str, number: int) -> Iterator[Printed]:
        if "_launch - " in line or "aoti_model_inputs - " in line:
            yield from self._headers(line, number)
        elif "Saved tensor to " in line:
            yield from _saved(line, number)
        elif self._open is not None:
            yield from self._body(line)

    def finish(self) -> Iterator[PrintedTensor]:
        if self._open is not None:
            yield self._close(self._open)

    def _headers(self, line: str, number: int) -> Iterator[Printed]:
        for found in _HEADER.finditer(line):
            yield from self.finish()
            when: When = found["when"]  # type: ignore[assignment]
            kernel, argument = _split(found["what"], when)
            if found["tensor"]:
                self._begin(PrintedTensor(when, kernel, argument, number))
            else:
                name, _, text = argument.partition(": ")
                yield PrintedScalar(when, kernel, name, text[:100], number)

    def _begin(self, tensor: PrintedTensor) -> None:
        fresh = tensor.argument.startswith("buf") and tensor.argument not in self._written
        self._open = replace(tensor, uninitialised=fresh and tensor.when == "before_launch")
        self._values = []
        if tensor.when == "after_launch":
            self._written.add(tensor.argument)

    def _body(self, line: str) -> Iterator[PrintedTensor]:
        assert self._open is not None
        statistic = _STATISTIC.match(line)
        if statistic:
            self._open = _with_statistic(self._open, statistic["name"], statistic["value"].strip())
        elif _END.match(line):
            yield self._close(self._open)
        elif self._open.elements is None and len(self._values) < MAX_VALUES:
            self._values.extend(_numbers(line))

    def _close(self, tensor: PrintedTensor) -> PrintedTensor:
        self._open = None
        return replace(tensor, values=tuple(self._values[:MAX_VALUES]))


def _split(what: str, when: str) -> tuple[str, str]:
    if when == "aoti_model_inputs":
        return "", what
    kernel, _, argument = what.rpartition(" - ")
    return kernel, argument


def _numbers(line: str) -> list[float]:
    if "Type{" in line:
        return []
    return [float(text) for text in _VALUE.findall(line)[:MAX_VALUES] if _is_number(text)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _with_statistic(tensor: PrintedTensor, name: str, value: str) -> PrintedTensor:
    if name == "Number of elements":
        return replace(tensor, elements=int(value[:18]) if value.isdecimal() else None)
    if name == "Dtype":
        return replace(tensor, dtype=value[:60])
    if name == "Device":
        return replace(tensor, device=value[:40])
    if name == "Size":
        return replace(tensor, size=_integers(value))
    if name == "Stride":
        return replace(tensor, stride=_integers(value))
    if name == "Is contiguous":
        return replace(tensor, contiguous=value == "1")
    number = float(value) if _is_number(value) else None
    if name == "Mean value":
        return replace(tensor, mean=number)
    return replace(tensor, minimum=number) if name == "Min value" else replace(tensor, maximum=number)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"-?\d{1,18}", text)[:64])


def _saved(line: str, number: int) -> Iterator[SavedTensor]:
    found = _SAVED.search(line)
    name = _FILE.search(PurePosixPath(found["path"]).name) if found else None
    if found is None or name is None:
        return
    buffer = _BUFFER.match(name["what"])
    kernel, argument = (buffer["kernel"], buffer["argument"]) if buffer else ("", name["what"])
    when: When = name["when"]  # type: ignore[assignment]
    yield SavedTensor(found["path"], when, kernel, argument, name["device"], number)


def _named(saved: list[SavedTensor], kernels: Collection[str]) -> Iterator[SavedTensor]:
    """Split names such as `kernel_0_blocks_0_weight` by the kernels that are known, the longest first."""
    known = sorted({*kernels, *(record.kernel for record in saved if record.kernel)}, key=len, reverse=True)
    for record in saved:
        whole = f"{record.kernel}_{record.argument}".lstrip("_")
        kernel = next((name for name in known if whole.startswith(f"{name}_")), record.kernel)
        yield replace(record, kernel=kernel, argument=whole.removeprefix(f"{kernel}_") if kernel else whole)
