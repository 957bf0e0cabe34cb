"""What a package compiled with AOTInductor's intermediate value printer wrote.

Level 1 names the files that it saved, level 2 prints statistics and small tensors, level 3 only launches
(`log.py`). Formats: torch 2.8-2.15 (_inductor/codegen/debug_utils.py, aoti_torch/utils). An output is printed
before its launch although nothing wrote it yet: its values are noise then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

_HEADER = re.compile(
    r"\[ {1,2}(?P<when>before_launch|after_launch|aoti_model_inputs) - "
    r"(?P<what>[^\[\]]+?) {1,2}\](?P<tensor>:)?"
)
_END = "Requires grad: "
_STATISTIC = re.compile(r"(?:Mean|Min|Max) value: ?(?P<value>\S{1,40})")
_SAVED = "aoti_torch_save_tensor_handle: Saved tensor to "
# One of these is on the first line of all that it writes.
WORDS = (b"_launch - ", b"aoti_model_inputs - ", _SAVED.encode())


@dataclass(frozen=True)
class PrintedTensor:
    """One tensor as printed at level 2: mean, least and largest value, as far as they were printed.

    `noise` marks an output before the launch that writes it.
    """

    when: str
    kernel: str
    argument: str
    statistics: tuple[float, ...] = ()
    noise: bool = False

    @property
    def non_finite(self) -> bool:
        """Whether least or largest value is not finite. The mean proves nothing: it overflows in float32."""
        return any(not math.isfinite(value) for value in self.statistics[1:])


@dataclass(frozen=True)
class Printout:
    """All that the printer wrote: tensors, saved files, and the first tensor with NaN or infinity."""

    tensors: int = 0
    files: int = 0
    first_bad: PrintedTensor | None = None

    def __str__(self) -> str:
        parts = []
        if self.tensors:
            parts.append(f"the value printer showed {self.tensors} tensors, all finite")
        if (bad := self.first_bad) is not None:
            of_launch = f" {bad.when.replace('_', ' ')} of {bad.kernel}" if bad.kernel else ""
            first = f"{bad.argument}{of_launch} is the first with NaN or infinity"
            parts = [f"of {self.tensors} tensors that the value printer showed, {first}"]
        if self.files:
            parts.append(f"it saved {self.files} tensors as files, named in the log")
        return "; ".join(parts)


def read_printout(lines: Iterable[str]) -> Printout:
    """What levels 1 and 2 wrote among the lines of a log."""
    tensors, files, bad = 0, 0, None

    def watched() -> Iterator[str]:
        nonlocal files
        for line in lines:
            files += _SAVED in line
            yield line

    for tensor in printed_tensors(watched()):
        tensors += 1
        if bad is None and not tensor.noise and tensor.non_finite:
            bad = tensor
    return Printout(tensors, files, bad)


def printed_tensors(lines: Iterable[str]) -> Iterator[PrintedTensor]:
    """The tensors of level 2 in the order of the output. A block that was cut off gives what it held."""
    open_one: PrintedTensor | None = None
    written: set[str] = set()
    for line in chain(lines, (_END,)):
        if statistic := _STATISTIC.match(line):
            if open_one is not None:
                open_one = replace(open_one, statistics=(*open_one.statistics, _number(statistic["value"])))
            continue
        headers = list(_HEADER.finditer(line)) if " - " in line else []
        if open_one is not None and (headers or line.startswith(_END)):
            yield open_one
            open_one = None
        for found in headers:
            when, what = found["when"], found["what"]
            kernel, _, argument = what.rpartition(" - ") if "_launch" in when else ("", "", what)
            if not found["tensor"]:  # a scalar
                continue
            if open_one is not None:
                yield open_one
            noise = argument.startswith("buf") and argument not in written and when == "before_launch"
            open_one = PrintedTensor(when, kernel, argument, noise=noise)
            written |= {argument} if when == "after_launch" else set()


def _number(text: str) -> float:
    """The printed number; 0 if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return 0.0
