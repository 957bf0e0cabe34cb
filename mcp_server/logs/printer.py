"""What a package compiled with the intermediate value printer wrote, as typed records.

Level 1 names the files that it saved, level 2 prints statistics and small tensors, level 3 only launches
(`log.py`). Formats: torch 2.8-2.15 (facts: `_inductor/codegen/debug_utils.py`, aoti_torch/utils).
Known defects that are taken care of: scalars end in a literal backslash-n and no newline; the path of level
1 lacks a separator up to 2.14; an output is printed before its launch although nothing wrote it yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any, Literal

When = Literal["before_launch", "after_launch", "aoti_model_inputs"]

MAX_VALUES = 64
MAX_SAVED = 2_000

_HEADER = re.compile(
    r"\[ {1,2}(?P<when>before_launch|after_launch|aoti_model_inputs) - "
    r"(?P<what>[^\[\]]+?) {1,2}\](?P<tensor>:)?"
)
_END = "Requires grad: "
_VALUE = re.compile(r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)", re.IGNORECASE)
_SAVED = re.compile(r"aoti_torch_save_tensor_handle: Saved tensor to (?P<path>.+\.pt)")
_FILE = re.compile(r"(?P<when>before_launch|after_launch)_(?P<what>.+)_(?P<device>[a-z]+(?::\d+)?)\.pt$")
_BUFFER = re.compile(r"(?P<kernel>.+?)_(?P<argument>(?:buf\d+\w*|arg\d+_\d+))$")


@dataclass(frozen=True)
class PrintedTensor:
    """One tensor as printed at level 2; sizes and strides in elements.

    `mean`, `minimum` and `maximum` were computed in float32; None where the printer names none (empty or
    complex tensors). `uninitialised` marks an output before the launch that writes it: its values are noise.
    """

    when: When
    kernel: str
    argument: str
    elements: int | None = None
    dtype: str = ""
    mean: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    device: str = ""
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    uninitialised: bool = False


@dataclass(frozen=True)
class PrintedScalar:
    """A scalar argument; the printer writes floats and bools as integers, so only `text` is certain."""

    when: When
    kernel: str
    argument: str
    text: str


@dataclass(frozen=True)
class SavedTensor:
    """A file of level 1. Later calls overwrite it, and so does a second launch of the same kernel."""

    path: str
    when: When
    kernel: str
    argument: str
    device: str


Printed = PrintedTensor | PrintedScalar | SavedTensor


def read_saved(lines: Iterable[str], kernels: Collection[str] = ()) -> tuple[list[SavedTensor], int]:
    """The files that level 1 names in a run's output, in its order, and the number of those beyond the limit.

    `kernels` helps to split their names.
    """
    records = (record for record in read_printer(lines) if isinstance(record, SavedTensor))
    saved = list(islice(records, MAX_SAVED))
    dropped = sum(1 for _ in records)
    # Names such as `kernel_0_blocks_0_weight` are split by the kernels that are known, the longest first.
    known = sorted({*kernels, *(record.kernel for record in saved if record.kernel)}, key=len, reverse=True)
    named = []
    for record in saved:
        whole = f"{record.kernel}_{record.argument}".lstrip("_")
        kernel = next((name for name in known if whole.startswith(f"{name}_")), record.kernel)
        argument = whole.removeprefix(f"{kernel}_") if kernel else whole
        named.append(replace(record, kernel=kernel, argument=argument))
    return named, dropped


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"-?\d{1,18}", text)[:64])


# The lines of a tensor's statistics: the field that each fills, and how its value is read.
_STATISTICS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "Number of elements": ("elements", lambda value: int(value[:18]) if value.isdecimal() else None),
    "Dtype": ("dtype", lambda value: value[:60]),
    "Device": ("device", lambda value: value[:40]),
    "Size": ("size", _integers),
    "Stride": ("stride", _integers),
    "Mean value": ("mean", _number),
    "Min value": ("minimum", _number),
    "Max value": ("maximum", _number),
}
_STATISTIC = re.compile(rf"(?P<name>{'|'.join(_STATISTICS)}): ?(?P<value>.*)")


def read_printer(lines: Iterable[str]) -> Iterator[Printed]:
    """The records of levels 1 and 2 in the order of the output."""
    tensor: PrintedTensor | None = None  # whose block is open: until its last line, or the next header
    values: list[float] = []
    written: set[str] = set()
    for raw in chain(lines, (_END,)):
        line = raw.rstrip("\r\n")
        headers: Iterable[re.Match[str]] = ()
        if "_launch - " in line or "aoti_model_inputs - " in line:
            headers = _HEADER.finditer(line)
        elif "Saved tensor to " in line and (saved := _SAVED.search(line)):
            if file := _FILE.search(PurePosixPath(saved["path"]).name):
                buffer = _BUFFER.match(file["what"])
                kernel, argument = (buffer["kernel"], buffer["argument"]) if buffer else ("", file["what"])
                yield SavedTensor(saved["path"], _when(file), kernel, argument, file["device"])
        elif tensor is None:
            continue
        elif statistic := _STATISTIC.match(line):
            field, read = _STATISTICS[statistic["name"]]
            tensor = replace(tensor, **{field: read(statistic["value"].strip())})
        elif line.startswith(_END):
            yield replace(tensor, values=tuple(values[:MAX_VALUES]))
            tensor, values = None, []
        elif tensor.elements is None and len(values) < MAX_VALUES and "Type{" not in line:
            texts = _VALUE.findall(line)[:MAX_VALUES]
            values += [number for number in map(_number, texts) if number is not None]
        for found in headers:
            if tensor is not None:
                yield replace(tensor, values=tuple(values[:MAX_VALUES]))
            tensor, values, when, what = None, [], _when(found), found["what"]
            kernel, _, argument = what.rpartition(" - ") if "_launch" in when else ("", "", what)
            if not found["tensor"]:
                name, _, text = argument.partition(": ")
                yield PrintedScalar(when, kernel, name, text[:100])
                continue
            fresh = argument.startswith("buf") and argument not in written and when == "before_launch"
            tensor = PrintedTensor(when, kernel, argument, uninitialised=fresh)
            written |= {argument} if when == "after_launch" else set()


def _when(found: re.Match[str]) -> When:
    return found["when"]  # type: ignore[return-value]
