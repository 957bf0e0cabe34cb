"""Reads the journal that an instrumented package writes: one JSON object a line, the last line maybe cut.

The writer is `probes/native/runtime.cpp`; the dtype and device codes are those of c10::ScalarType and
c10::DeviceType (torch 2.8-2.15).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypedDict

from mcp_server.errors import read_json

RunEnd = Literal["returned", "threw", "unfinished"]
Role = Literal["read", "written", "read_write", "unknown"]
RunKey = tuple[int, int, int]  # process, runner, number of the call

MAX_LAUNCHES = 200_000  # kept; of a longer journal the newest
# The function that folds constants (`use_runtime_constant_folding`; cpp_wrapper_cpu.py, torch 2.8-2.15).
FOLDING = "_const_run_impl"

_ROLES: dict[int, Role] = {1: "read", 2: "written", 3: "read_write"}
# c10::DeviceType (DeviceType.h).
DEVICES = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps", 14: "meta", 20: "privateuse1"}
# Names and item sizes in bytes, by c10::ScalarType (torch/headeronly/core/ScalarType.h, torch 2.8-2.15).
DTYPES: dict[int, tuple[str, int]] = {
    0: ("uint8", 1),
    1: ("int8", 1),
    2: ("int16", 2),
    3: ("int32", 4),
    4: ("int64", 8),
    5: ("float16", 2),
    6: ("float32", 4),
    7: ("float64", 8),
    8: ("complex32", 4),
    9: ("complex64", 8),
    10: ("complex128", 16),
    11: ("bool", 1),
    15: ("bfloat16", 2),
    23: ("float8_e5m2", 1),
    24: ("float8_e4m3fn", 1),
    25: ("float8_e5m2fnuz", 1),
    26: ("float8_e4m3fnuz", 1),
    27: ("uint16", 2),
    28: ("uint32", 4),
    29: ("uint64", 8),
    44: ("float8_e8m0fnu", 1),
}
ITEM_SIZES = dict(DTYPES.values())  # bytes of an element, by dtype


@dataclass(frozen=True)
class TensorFacts:
    """A tensor as a launch got it. Shape, stride and offset in elements, the rest in bytes."""

    pointer: int
    dtype: str
    itemsize: int
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    storage_bytes: int


@dataclass(frozen=True)
class JournalArgument:
    """An argument: variable and parameter name, and a tensor or a number.

    Neither when the tensor was undefined.
    """

    name: str
    parameter: str
    role: Role
    tensor: TensorFacts | None = None
    value: int | float | None = None


@dataclass(frozen=True)
class JournalLaunch:
    """One launch of one call. `launch` is its number in the package, `sequence` its place in the call.

    `ended_ns` is None when nothing was written after it; `fault` is the device's error found there. Times are
    nanoseconds of the monotonic clock.
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
    """One call of a model. `key` is unique within a journal."""

    key: RunKey
    function: str
    thread: int
    end: RunEnd = "unfinished"
    launches: tuple[JournalLaunch, ...] = ()

    @property
    def folds_constants(self) -> bool:
        """Whether this is no call of the user's, but the folding of constants at the first one."""
        return self.function == FOLDING

    @property
    def open_launch(self) -> JournalLaunch | None:
        """The launch that began and of whose end nothing was written."""
        last = self.launches[-1] if self.launches else None
        return last if last is not None and last.ended_ns is None else None


@dataclass(frozen=True)
class Ending:
    """Where the journal ends: `how` and the launch.

    returned: every call came back. fault: the device reported an error after the launch. threw: an exception
    left the call during the launch. died: the process ended during it. between: after it, before the next.
    not_started: no launch was written.
    """

    how: Literal["returned", "fault", "threw", "died", "between", "not_started"]
    launch: JournalLaunch | None = None


@dataclass(frozen=True)
class Journal:
    """Calls in the order in which they began.

    `cut_lines` could not be read, `forgotten` launches were not kept.
    """

    runs: tuple[JournalRun, ...]
    cut_lines: int = 0
    forgotten: int = 0

    @property
    def launches(self) -> tuple[JournalLaunch, ...]:
        return tuple(launch for run in self.runs for launch in run.launches)

    @property
    def calls(self) -> tuple[JournalRun, ...]:
        """The calls of the user."""
        return tuple(run for run in self.runs if not run.folds_constants)

    @property
    def ending(self) -> Ending:
        """The first of: a device fault, a call that did not finish, a call that threw, the last return."""
        calls = [run for run in self.runs if run.launches]
        fault = next((launch for launch in self.launches if launch.fault), None)
        if fault is not None:
            return Ending("fault", fault)
        stuck = next((run for run in reversed(calls) if run.end == "unfinished"), None)
        if stuck is not None:
            return Ending("died" if stuck.open_launch else "between", stuck.launches[-1])
        last = calls[-1] if calls else None
        if last is None:
            return Ending("not_started")
        return Ending("threw" if last.end == "threw" else "returned", last.launches[-1])


def read_journal_file(path: Path) -> Journal:
    """Read `path`, and the older half that the writer set aside as `path.1`. No file is an empty journal."""
    return read_journal(_lines(path))


def _lines(path: Path) -> Iterator[str]:
    for part in (path.with_name(path.name + ".1"), path):
        if part.exists():
            with part.open(encoding="utf-8", errors="replace") as lines:
                yield from lines


def read_journal(lines: Iterable[str]) -> Journal:
    """Never raises on damaged lines: they are counted."""
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


class _Argument(TypedDict, total=False):
    """An argument as it is written: codes of dtype and device, and a number that JSON has not as text."""

    name: str
    parameter: str
    role: int
    value: int | float | str
    pointer: int
    dtype: int
    device_type: int
    device_index: int
    shape: list[int]
    stride: list[int]
    storage_offset: int
    storage_bytes: int


class _Event(TypedDict, total=False):
    """One line: the beginning or the end of a run or of a launch, or the device's error after a launch."""

    event: str
    phase: str
    pid: int
    runner: int
    run: int
    thread: int
    function: str
    launch: int
    sequence: int
    kernel: str
    ns: int
    error: str
    arguments: list[_Argument]


@dataclass
class _Reader:
    """Runs and launches by key, in order of appearance."""

    runs: dict[RunKey, JournalRun] = field(default_factory=dict)
    launches: dict[tuple[RunKey, int], JournalLaunch] = field(default_factory=dict)
    forgotten: int = 0

    def take(self, event: _Event) -> None:
        """Add one event. Raises what `read_journal` counts as a damaged line."""
        key = (int(event["pid"]), int(event["runner"]), int(event["run"]))
        if event["event"] == "run":
            run = self.runs.get(key) or JournalRun(key, str(event["function"]), int(event["thread"]))
            ends: dict[str, RunEnd] = {"end": "returned", "threw": "threw"}
            self.runs[key] = replace(run, end=ends.get(event["phase"], "unfinished"))
        elif event["event"] == "fault":
            self._close(key, event, fault=str(event["error"])[:2000])
        elif event["phase"] == "before":
            self._open(key, event)
        else:
            self._close(key, event)

    def _open(self, key: RunKey, event: _Event) -> None:
        self.runs.setdefault(key, JournalRun(key, "", int(event["thread"])))
        launch = JournalLaunch(
            run=key,
            launch=int(event["launch"]),
            sequence=int(event["sequence"]),
            kernel=str(event["kernel"]),
            thread=int(event["thread"]),
            started_ns=int(event["ns"]),
            arguments=tuple(_argument(a) for a in event["arguments"]),
        )
        self.launches[key, launch.sequence] = launch
        if len(self.launches) > MAX_LAUNCHES:
            self.launches.pop(next(iter(self.launches)))
            self.forgotten += 1

    def _close(self, key: RunKey, event: _Event, fault: str = "") -> None:
        """Add what the launch produced. Its beginning may have been rotated away."""
        place = (key, int(event["sequence"]))
        launch = self.launches.get(place)
        if launch is None:
            return
        made = {a.name: a for a in (_argument(raw) for raw in event.get("arguments", ()))}
        arguments = tuple(made.get(a.name, a) if a.tensor is None else a for a in launch.arguments)
        self.launches[place] = replace(launch, ended_ns=int(event["ns"]), arguments=arguments, fault=fault)


def _argument(raw: _Argument) -> JournalArgument:
    tensor = None
    if "pointer" in raw:
        dtype, itemsize = DTYPES.get(raw["dtype"], (f"dtype code {raw['dtype']}", 1))
        device = DEVICES.get(raw["device_type"], f"device type {raw['device_type']}")
        index = int(raw["device_index"])
        tensor = TensorFacts(
            pointer=int(raw["pointer"]),
            dtype=dtype,
            itemsize=itemsize,
            device=device if index < 0 else f"{device}:{index}",
            shape=tuple(int(size) for size in raw["shape"]),
            stride=tuple(int(step) for step in raw["stride"]),
            storage_offset=int(raw["storage_offset"]),
            storage_bytes=int(raw["storage_bytes"]),
        )
    value = raw.get("value")
    return JournalArgument(
        name=str(raw["name"]),
        parameter=str(raw["parameter"]),
        role=_ROLES.get(raw["role"], "unknown"),
        tensor=tensor,
        value=float(value) if isinstance(value, str) else value,
    )
