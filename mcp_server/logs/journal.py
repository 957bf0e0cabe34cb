"""Reads the journal that an instrumented package writes: one JSON object per line; the last line may be cut.

The writer is `probes/native/runtime.cpp`; the dtype and device codes are those of c10::ScalarType and
c10::DeviceType (torch 2.8-2.15).

The end of the module reads what AOTInductor's intermediate value printer writes (torch 2.8-2.15,
debug_utils.py and aoti_torch/utils): at level 1 the names of saved files, at level 2 statistics and small
tensors. The printer also prints an output before the launch that writes it. Those values are noise.
"""

import math
import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from mcp_server.errors import read_json

RunEnd = Literal["returned", "threw", "unfinished"]
Role = Literal["read", "written", "read_write", "unknown"]
RunKey = tuple[int, int, int]  # process, runner, number of the call

MAX_LAUNCHES = 200_000  # how many launches are kept; in a longer journal, the newest
# The function that folds constants (`use_runtime_constant_folding`; cpp_wrapper_cpu.py, torch 2.8-2.15).
FOLDING = "_const_run_impl"

_ROLES: dict[int, Role] = {1: "read", 2: "written", 3: "read_write"}
# c10::DeviceType (DeviceType.h).
DEVICES = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps", 14: "meta", 20: "privateuse1"}
# c10::ScalarType (torch/headeronly/core/ScalarType.h, torch 2.8-2.15).
DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2",
    24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz", 27: "uint16", 28: "uint32",
    29: "uint64", 44: "float8_e8m0fnu",
}  # fmt: skip


@dataclass(frozen=True)
class TensorFacts:
    """A tensor as a launch received it. Stride and offset are in elements."""

    pointer: int
    dtype: str
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int


@dataclass(frozen=True)
class JournalArgument:
    """A launch argument: the names of its variable and parameter, and its tensor or number.

    `tensor` and `value` are both None if the tensor was undefined.
    """

    name: str
    parameter: str
    role: Role
    tensor: TensorFacts | None = None
    value: int | float | None = None


@dataclass(frozen=True)
class JournalLaunch:
    """One launch of one call. `launch` is its number in the package, `sequence` its place in the call.

    Times are nanoseconds of the monotonic clock. `ended_ns` is None if the journal has no event from after
    the launch. `fault` is the device error that was found after the launch.
    """

    run: RunKey
    launch: int
    sequence: int
    kernel: str
    thread: int
    started_ns: int
    ended_ns: int | None = None
    arguments: tuple[JournalArgument, ...] = ()
    fault: str = ""

    @property
    def seconds(self) -> float | None:
        return None if self.ended_ns is None else (self.ended_ns - self.started_ns) / 1e9


@dataclass(frozen=True)
class JournalRun:
    """One call of a model."""

    key: RunKey
    function: str
    thread: int
    end: RunEnd = "unfinished"
    launches: tuple[JournalLaunch, ...] = ()


@dataclass(frozen=True)
class Ending:
    """How the journal ends, and the launch at its end.

    returned: every call returned. fault: the device reported an error after the launch. threw: the last call
    threw an exception after this launch began. died: the process ended during the launch. between: the
    process ended after the launch and before the next. not_started: the journal has no launch.
    """

    how: Literal["returned", "fault", "threw", "died", "between", "not_started"]
    launch: JournalLaunch | None = None


@dataclass(frozen=True)
class Journal:
    """Calls in the order in which they began.

    `cut_lines` counts unreadable lines; `forgotten` counts launches that were not kept.
    """

    runs: tuple[JournalRun, ...]
    cut_lines: int = 0
    forgotten: int = 0

    @property
    def launches(self) -> tuple[JournalLaunch, ...]:
        return tuple(launch for run in self.runs for launch in run.launches)

    @property
    def calls(self) -> tuple[JournalRun, ...]:
        """The user's calls, without the constant folding of the first call."""
        return tuple(run for run in self.runs if run.function != FOLDING)

    @property
    def ending(self) -> Ending:
        """How the journal ends: a device fault, else the last unfinished call, else the last call."""
        calls = [run for run in self.runs if run.launches]
        fault = next((launch for launch in self.launches if launch.fault), None)
        if fault is not None:
            return Ending("fault", fault)
        stuck = next((run for run in reversed(calls) if run.end == "unfinished"), None)
        if stuck is not None:
            last_launch = stuck.launches[-1]
            return Ending("died" if last_launch.ended_ns is None else "between", last_launch)
        last = calls[-1] if calls else None
        if last is None:
            return Ending("not_started")
        return Ending("threw" if last.end == "threw" else "returned", last.launches[-1])


def read_journal_file(path: Path) -> Journal:
    """Read `path` and the older half that the writer set aside as `path.1`. Empty if there is no file."""
    parts = (part for part in (path.with_name(path.name + ".1"), path) if part.exists())
    with ExitStack() as stack:
        opened = [stack.enter_context(part.open(encoding="utf-8", errors="replace")) for part in parts]
        return read_journal(chain.from_iterable(opened))


def read_journal(lines: Iterable[str]) -> Journal:
    """Parse journal lines. Damaged lines raise nothing; they are counted."""
    reader, cut_lines = _Reader(), 0
    for line in lines:
        try:
            if line.strip():
                reader.take(read_json(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            cut_lines += 1
    grouped: dict[RunKey, list[JournalLaunch]] = {}
    for launch in reader.launches.values():
        grouped.setdefault(launch.run, []).append(launch)
    runs = [replace(run, launches=tuple(grouped.get(key, ()))) for key, run in reader.runs.items()]
    return Journal(tuple(runs), cut_lines, reader.forgotten)


@dataclass
class _Reader:
    """The runs and launches read so far, by key, in order of appearance."""

    runs: dict[RunKey, JournalRun] = field(default_factory=dict)
    launches: dict[tuple[RunKey, int], JournalLaunch] = field(default_factory=dict)
    forgotten: int = 0

    def take(self, event: Any) -> None:
        """Add the event of one line. If the line is damaged, this raises, and `read_journal` counts it."""
        key = (int(event["pid"]), int(event["runner"]), int(event["run"]))
        if event["event"] == "run":
            run = self.runs.get(key) or JournalRun(key, str(event["function"]), int(event["thread"]))
            ends: dict[str, RunEnd] = {"end": "returned", "threw": "threw"}
            self.runs[key] = replace(run, end=ends.get(event["phase"], "unfinished"))
            return
        place = (key, int(event["sequence"]))
        arguments = tuple(_argument(raw) for raw in event.get("arguments", ()))
        if event["event"] != "fault" and event["phase"] == "before":
            self.runs.setdefault(key, JournalRun(key, "", int(event["thread"])))
            self.launches[place] = JournalLaunch(
                run=key,
                launch=int(event["launch"]),
                sequence=place[1],
                kernel=str(event["kernel"]),
                thread=int(event["thread"]),
                started_ns=int(event["ns"]),
                arguments=arguments,
            )
            if len(self.launches) > MAX_LAUNCHES:
                self.launches.pop(next(iter(self.launches)))
                self.forgotten += 1
        elif launch := self.launches.get(place):  # otherwise its beginning was rotated away
            made = {argument.name: argument for argument in arguments}
            known = tuple(a if a.tensor is not None else made.get(a.name, a) for a in launch.arguments)
            fault = str(event["error"])[:2000] if event["event"] == "fault" else ""
            self.launches[place] = replace(launch, ended_ns=int(event["ns"]), arguments=known, fault=fault)


def _argument(raw: Any) -> JournalArgument:
    tensor = None
    if "pointer" in raw:
        dtype = DTYPES.get(raw["dtype"], f"dtype code {raw['dtype']}")
        device = DEVICES.get(raw["device_type"], f"device type {raw['device_type']}")
        index = int(raw["device_index"])
        tensor = TensorFacts(
            pointer=int(raw["pointer"]),
            dtype=dtype,
            device=device if index < 0 else f"{device}:{index}",
            shape=tuple(int(size) for size in raw["shape"]),
            stride=tuple(int(step) for step in raw["stride"]),
            storage_offset=int(raw["storage_offset"]),
        )
    value = raw.get("value")
    return JournalArgument(
        name=str(raw["name"]),
        parameter=str(raw["parameter"]),
        role=_ROLES.get(raw["role"], "unknown"),
        tensor=tensor,
        value=float(value) if isinstance(value, str) else value,  # text for values that JSON lacks
    )


_HEADER = re.compile(
    r"\[ {1,2}(?P<when>before_launch|after_launch|aoti_model_inputs) - "
    r"(?P<what>[^\[\]]+?) {1,2}\](?P<tensor>:)?"
)
# The smallest or largest value of a tensor. The mean proves nothing: it overflows in float32.
_EXTREME = re.compile(r"(?:Min|Max) value: ?(?P<value>\S{1,40})")
_SAVED = "aoti_torch_save_tensor_handle: Saved tensor to "


def read_printout(lines: Iterable[str]) -> str:
    """Summarize what the value printer wrote into a log at level 1 or 2. Empty if it wrote nothing."""
    tensors, files, first_bad = 0, 0, ""
    # The tensor whose statistics follow. Empty for an output before the launch that writes it.
    shown = ""
    written: set[str] = set()
    for line in lines:
        files += _SAVED in line
        extreme = _EXTREME.match(line)
        if extreme is not None and not first_bad and not math.isfinite(_number(extreme["value"])):
            first_bad = shown
        for found in _HEADER.finditer(line) if " - " in line else ():
            if found["tensor"]:  # not a scalar
                tensors += 1
                shown = _shown(found["when"], found["what"], written)
    parts = []
    if first_bad:
        bad = f"{first_bad} is the first with NaN or infinity"
        parts.append(f"of {tensors} tensors that the value printer showed, {bad}")
    elif tensors:
        parts.append(f"the value printer showed {tensors} tensors, all finite")
    if files:
        parts.append(f"it saved {files} tensors as files, named in the log")
    return "; ".join(parts)


def _shown(when: str, what: str, written: set[str]) -> str:
    """Name a printed tensor and its launch. Empty for noise; `written` are the outputs of launches so far."""
    kernel, _, argument = what.rpartition(" - ") if "_launch" in when else ("", "", what)
    if when == "after_launch":
        written.add(argument)
    elif when == "before_launch" and argument.startswith("buf") and argument not in written:
        return ""
    return f"{argument} {when.replace('_', ' ')} of {kernel}" if kernel else argument


def _number(text: str) -> float:
    """The printed number, or 0 if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return 0.0
