"""What a capture recorded: the compiles, loads, constant updates and calls of every process in a run.

`read_capture` reads them from the journals that the hook writes (`worker/capture/journal.py`). If a process
dies, the phase in which it died has no end. This shows whether it crashed or hung inside AOTInductor.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, prod
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_server.errors import read_json
from mcp_server.model import ModelLocation, Record
from mcp_server.worker.report import Attempt, TensorFacts

Outcome = Literal["ok", "failed", "unfinished"]


class JournalRecord(BaseModel):
    """A record read from a journal. Unknown keys, which a newer hook may write, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StoppedAt(JournalRecord):
    """The operator that was being compiled when the compiler failed, such as `desk.longest_run.default`.

    `stack` is the traceback text of the model's lines that call the operator.
    """

    operator: str
    stack: str = ""


class CapturedError(JournalRecord):
    """The exception that the program received.

    `no_files` is the limit on open files, set only if the process had reached it. `file_bytes` is the limit
    on file size. None if there is no limit. `stopped_at` is set for a failed compile.
    """

    type: str
    text: str
    no_files: int | None = None
    file_bytes: int | None = None
    stopped_at: list[StoppedAt] = Field(default_factory=list)


@dataclass
class Leaf(TensorFacts):
    """One tensor. `unreadable` says why its values could not be read.

    `sum` adds up the elements. It is set only for a floating-point output whose values are all finite.
    """

    sum: float | None = None
    unreadable: str = ""

    @property
    def device_index(self) -> int | None:
        """The device index, such as 1 for `cuda:1`. None for a device without an index, such as `cpu`."""
        index = (self.device or "").partition(":")[2]
        return int(index) if index.isdigit() else None


class Phase(JournalRecord):
    """The fields that all phases and events of a process share.

    `n` orders the events of a process. `t` is the wall-clock time of the start in seconds. `notice` says what
    was not kept.
    """

    pid: int
    n: int
    t: float = 0.0
    notice: str = ""
    outcome: Outcome = "unfinished"
    seconds: float | None = None
    error: CapturedError | None = None
    stack: list[ModelLocation] = Field(default_factory=list)

    @property
    def location(self) -> ModelLocation | None:
        """The line of the user's program that started this phase. None if unknown."""
        return self.stack[0] if self.stack else None


class CapturedCompile(Phase):
    """One compile. `configs_exact` is False if an option could not be recorded exactly.

    `program` is True if the input was an exported program, even if the program was not kept. `libraries` are
    the operator libraries loaded before the compile. `empty_cache` is True if the environment named a compile
    cache that was empty.
    """

    number: int
    how: str
    empty_cache: bool = False
    exported: Path | None = None
    program: bool = False
    package: Path | None = None
    configs: dict[str, object] = Field(default_factory=dict)
    configs_exact: bool = True
    flags: dict[str, str] = Field(default_factory=dict)
    torch: str = ""
    libraries: list[Path] = Field(default_factory=list)


class CapturedOverwriting(JournalRecord):
    """A package file that was about to be overwritten. `kept` is a copy. If it is None, `notice` says why."""

    path: Path
    kept: Path | None = None
    notice: str = ""


class CapturedLoad(Phase):
    """One load. `copy_path` is a copy of the package at that time. None if the copy could not be kept.

    `bytes` is the size of the file, or 0 if the file did not exist. `libraries` are the operator libraries
    (`torch.ops.load_library`) loaded earlier. `current_device` is the thread's CUDA device, recorded for a
    CUDA package, because a load without a device index uses it (`device_idx` of -1 in
    torch/csrc/inductor/aoti_runtime/model_base.h, 2.8-2.15).
    """

    number: int
    loader: str
    package: Path
    copy_path: Path | None = None
    sha256: str = ""
    bytes: int = 0
    options: dict[str, object] = Field(default_factory=dict)
    libraries: list[Path] = Field(default_factory=list)
    current_device: int | None = None

    @property
    def device_index(self) -> int | None:
        """The index of the CUDA device that the load used, either requested or current. None if unknown."""
        asked = self.options.get("device_index", -1)
        return asked if isinstance(asked, int) and asked >= 0 else self.current_device


class CapturedHost(Phase):
    """A process that the program started with a package among its arguments; `copy_path` as for a load."""

    argv: list[str] = Field(default_factory=list)
    package: Path
    copy_path: Path | None = None


class CapturedUpdate(Phase):
    """One update of constants. `constants` are the ones passed; `compiled` names all constants of the model.

    `views` names the passed constants that are part of a larger block of memory.
    """

    number: int
    load: int
    how: str
    arguments: list[Any] = Field(default_factory=list)
    file: Path | None = None
    compiled: list[str] = Field(default_factory=list)
    constants: dict[str, Leaf] = Field(default_factory=dict)
    views: list[str] = Field(default_factory=list)

    @property
    def user_managed(self) -> bool:
        """Whether the package then uses the caller's memory: the third argument is True (torch 2.8-2.15)."""
        return self.how != "update_constant_buffer_from_cpu" and self.arguments[2:3] == [True]

    @property
    def missing(self) -> list[str]:
        return sorted(set(self.compiled) - set(self.constants))

    @property
    def unknown(self) -> list[str]:
        return sorted(set(self.constants) - set(self.compiled))


class HoldsOutputs(Phase):
    """At the end, `kept_outputs` memory blocks of the outputs of `kept_calls` calls were still in use."""

    kept_outputs: int = 0
    kept_calls: int = 0
    kept_bytes: int = 0


class CapturedCall(HoldsOutputs):
    """One call. `file` contains its inputs. None if they were not kept, or were deleted after it succeeded.

    - `threads`: the number of torch's CPU threads. 0 if unknown.
    - `streams`: the program had switched to another CUDA stream before the call.
    - `headroom`: bytes that the process could still map under the limit `headroom_of`. None if unlimited.
    - `stack_bytes`: the thread's stack size, if limited. `current_device`: the thread's CUDA device.
    - `after`: the number of earlier calls, if the `loaders` in use were counted. 0 if they were not.
    - `shared`: (input, earlier call, its input) for each input that a call of another load also had.
    - `began_cpu` and `ended_cpu`: processor seconds of the calling thread when the hook began and finished
      its work on the call.
    """

    number: int
    load: int
    thread: int
    thread_name: str = ""
    threads: int = 0
    file: Path | None = None
    leaves: list[Leaf] = Field(default_factory=list)
    streams: bool = False
    headroom: int | None = None
    headroom_of: str = ""
    stack_bytes: int | None = None
    current_device: int | None = None
    shared: list[tuple[int, int, int]] = Field(default_factory=list)
    outputs: list[Leaf] = Field(default_factory=list)
    after: int = 0
    loaders: int = 0
    began_cpu: float = 0.0
    ended_cpu: float = 0.0

    @property
    def in_graph(self) -> bool:
        """Whether the call was recorded into a CUDA graph. The hook does not see the replays of a graph."""
        return "a CUDA graph was being captured" in self.notice

    @property
    def unreadable(self) -> str:
        """The device error raised when the outputs were read. This or an earlier call caused it."""
        return next((leaf.unreadable for leaf in self.outputs if leaf.unreadable), "")

    @property
    def nonfinite(self) -> bool:
        return any(leaf.nan or leaf.inf for leaf in self.outputs)

    @property
    def broke_device(self) -> bool:
        """Whether the call ended with a device error, which every later use of the device raises again."""
        return bool(self.unreadable) or (self.error is not None and "CUDA error" in self.error.text)


class MemoryEvent(Phase):
    """One event in the log of memory: something happened to storage that a call reads or an output shares.

    `interval` says when it happened:

    - `update`: between the update of a constant that the program manages, and the call.
    - `call`: during the call. `stream`: before the streams that write or read the input had finished.
    - `graph`: between the capture of the call in a CUDA graph, and a replay.
    - `calls`: between two calls with the same input; `earlier` is the first. `packages`: the same for calls
      of two packages.
    - `output`: after the call returned the output.

    `call` is None if the event was seen at a failure after the call. `counted` is True if the only sign is a
    count of writes, which all views of a block of memory share.
    """

    storage: Literal["input", "constant", "output"]
    act: Literal["written", "moved", "freed", "unmapped", "given"]
    interval: Literal["update", "call", "stream", "graph", "output", "calls", "packages"]
    call: int | None = None
    earlier: int | None = None
    load: int | None = None
    input: int = 0
    output: int = 0
    names: list[str] = Field(default_factory=list)
    counted: bool = False
    during: str = ""  # the call of a recorded host, in words


class CapturedAttempts(Phase):
    """What was tried on the export or compile at which the program ended.

    `stage` is "range" for exports with a wider range, "narrowed" for changes of the lines that narrowed a
    range, and "loop" for a loop that the export unrolled; `file` then has the program without the loop.
    `advice` is for the layer at which the attempts stopped.
    """

    stage: str = ""
    advice: str = ""
    file: Path | None = None
    attempts: list[Attempt] = Field(default_factory=list)


class FailedCheck(HoldsOutputs):
    """A failed check of the script, or another exception that ended a process after it had compiled."""


class CapturedDrift(Phase):
    """Weights of an exported model that the program changed after the export. `file` has their values.

    If `of` names a variable of a failed check: weights of that model that are not the package's. `taken` maps
    a name to the weight of the model whose values the package has there.
    """

    of: str = ""
    names: list[str] = Field(default_factory=list)
    taken: dict[str, str] = Field(default_factory=dict)
    file: Path | None = None


class CapturedPartialLoad(Phase):
    """A `load_state_dict` that left `missing` of the model's `of` weights unchanged.

    `names` lists the first of them, `unexpected` the first names in the file that the model lacks.
    """

    missing: int = 0
    of: int = 0
    names: list[str] = Field(default_factory=list)
    unexpected: list[str] = Field(default_factory=list)


class CapturedAssertion(FailedCheck):
    """A failed `torch.testing.assert_close`, or an `allclose` or `equal` whose result ended the script.

    `file` holds {"actual", "expected"}. `calls` are the calls whose outputs were compared.
    """

    file: Path | None = None
    calls: list[int] = Field(default_factory=list)


class CapturedProcess(JournalRecord):
    """One process that compiled, loaded or called. `exited` is False if it crashed or was killed.

    `rank` is the process's rank under a launcher, in digits.
    """

    pid: int
    rank: str = ""
    parent: int
    argv: list[str]
    cwd: str = ""
    python: str
    exited: bool = False
    hook_failures: list[str] = Field(default_factory=list)


class Captured(Record):
    """Everything that the hook recorded, in chronological order."""

    processes: list[CapturedProcess] = Field(default_factory=list)
    compiles: list[CapturedCompile] = Field(default_factory=list)
    overwritings: list[CapturedOverwriting] = Field(default_factory=list)
    loads: list[CapturedLoad] = Field(default_factory=list)
    hosts: list[CapturedHost] = Field(default_factory=list)
    updates: list[CapturedUpdate] = Field(default_factory=list)
    calls: list[CapturedCall] = Field(default_factory=list)
    attempts: list[CapturedAttempts] = Field(default_factory=list)
    assertions: list[CapturedAssertion] = Field(default_factory=list)
    memory: list[MemoryEvent] = Field(default_factory=list)
    drifts: list[CapturedDrift] = Field(default_factory=list)
    partial_loads: list[CapturedPartialLoad] = Field(default_factory=list)
    ends: list[FailedCheck] = Field(default_factory=list)
    failed_exports: list[Phase] = Field(default_factory=list)
    misfits: list[CapturedCall] = Field(default_factory=list)  # a failed program's calls with unfit inputs

    @property
    def phases(self) -> list[Phase]:
        """All compiles, loads, updates and calls."""
        return [*self.compiles, *self.loads, *self.updates, *self.calls]

    @property
    def narrowing(self) -> CapturedAttempts | None:
        """The lines of the model that narrowed a range below the sizes of the program, and their changes."""
        return next((each for each in self.attempts if each.stage == "narrowed" and each.stack), None)

    @property
    def failing(self) -> CapturedCall | None:
        """The call in which a process died, the first that broke the device, or the last that raised.

        A server may survive calls that raise, so the last one counts. Device errors persist, so the first one
        counts.
        """
        exited = {process.pid for process in self.processes if process.exited}
        unfinished = [call for call in self.calls if call.outcome == "unfinished"]
        dying = [call for call in unfinished if call.pid not in exited]
        broken = [call for call in self.calls if call.broke_device]
        raised = [call for call in self.calls if call.outcome == "failed"]
        return next(iter([*dying[-1:], *broken[:1], *raised[-1:], *unfinished[-1:]]), None)

    @property
    def suspect(self) -> CapturedCall | None:
        """The first of: failing call, call that a check rejected, odd output, last misfit, last call."""
        odd = next((call for call in self.calls if call.nonfinite and call.file), None)
        kept = [call for call in self.calls if call.file]
        return self.failing or self.refused or odd or next(reversed(self.misfits or kept), None)

    @property
    def refused(self) -> CapturedCall | None:
        """The call whose outputs failed the program's last comparison. None if its inputs were not kept."""
        last = next(reversed(self.assertions), None)
        looked_at = {(last.pid, number) for number in last.calls} if last is not None else set()
        return next((call for call in self.calls if (call.pid, call.number) in looked_at and call.file), None)

    @property
    def host(self) -> CapturedHost | None:
        """The last non-Python process that was started with a package. None if it cannot be the suspect:

        a Python process loaded a package later, a call from Python failed, or a later check rejected a call.
        """
        last = next(reversed(self.hosts), None)
        if last is None or self.failing is not None:
            return None
        if any(load.pid != last.pid and load.t > last.t for load in self.loads):
            return None
        return last if self.refused is None or self.refused.t < last.t else None

    def load_of(self, call: CapturedCall | CapturedUpdate) -> CapturedLoad | None:
        """The load whose model was called or updated."""
        return next((load for load in self.loads if (load.pid, load.number) == (call.pid, call.load)), None)

    def compile_of(self, phase: CapturedLoad | CapturedCall | CapturedUpdate) -> CapturedCompile | None:
        """The last successful compile that wrote the package used by a load, call or update."""
        load = phase if isinstance(phase, CapturedLoad) else self.load_of(phase)
        wrote = [c for c in self.compiles if load is not None and c.package == load.package]
        return next((c for c in reversed(wrote) if c.outcome == "ok"), None)


R = TypeVar("R", bound=JournalRecord)
Facts = Mapping[str, object]  # checked by the records above


@dataclass(frozen=True)
class Line:
    """One event in a journal; `n` is its number within the process `pid`."""

    event: str
    pid: float
    n: float
    t: float
    facts: Facts


# For each phase: the event that begins it, the key of its number, and the events for success and failure.
COMPILES = ("compiling", "compile", "compiled", "compile_failed")
LOADS = ("loading", "load", "loaded", "load_failed")
UPDATES = ("updating", "update", "updated", "update_failed")
CALLS = ("calling", "call", "called", "call_failed")
EXPORTS = ("exporting", "export_failed", "exported")
OF_ANY = ("process", *EXPORTS, "exit")  # events of a process that need not use AOTInductor
OF_THE_END = (
    "outputs",
    "package",
    "seconds",
    "after",
    "kept_outputs",
    "kept_calls",
    "kept_bytes",
    "loaders",
    "cpu_s",
    "ended_cpu",
)


def read_capture(directory: Path) -> Captured:
    """Read all journals in `directory`, skipping lines cut by a crash or not written by the hook."""
    lines: list[Line] = []
    for journal in sorted(directory.glob("capture-*[0-9].jsonl")):
        tails = sorted(journal.parent.glob(journal.stem + ".tail*.jsonl"))
        lines += sorted((line for path in (journal, *tails) for line in _lines(path)), key=attrgetter("n"))
    lines.sort(key=attrgetter("t"))
    return Captured(
        processes=_processes(lines),
        compiles=_phases(lines, COMPILES, CapturedCompile),
        overwritings=_single(lines, "overwriting", CapturedOverwriting),
        loads=_phases(lines, LOADS, CapturedLoad),
        hosts=_single(lines, "host", CapturedHost),
        updates=_phases(lines, UPDATES, CapturedUpdate),
        calls=_phases(lines, CALLS, CapturedCall),
        attempts=_single(lines, "attempted", CapturedAttempts),
        assertions=_single(lines, "assertion_failed", CapturedAssertion),
        memory=_single(lines, "memory", MemoryEvent),
        drifts=_single(lines, "drifted", CapturedDrift),
        partial_loads=_single(lines, "partly_loaded", CapturedPartialLoad),
        ends=_single(lines, "program_failed", FailedCheck),
        failed_exports=_single(lines, "export_failed", Phase),
    )


def _lines(path: Path) -> Iterator[Line]:
    """Yield the journal lines that have all the fields of an event."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            with suppress(ValueError):
                facts = read_json(text)
                if isinstance(facts, dict) and isinstance(facts.get("event"), str):
                    numbers = [facts.get(name) for name in ("pid", "n", "t")]
                    whole = all(isinstance(number, int | float) and isfinite(number) for number in numbers)
                    if whole and isinstance(facts.get("frames", []), list):
                        yield Line(facts["event"], facts["pid"], facts["n"], facts["t"], facts)


def _of(lines: list[Line], event: str) -> list[Line]:
    return [line for line in lines if line.event == event]


def _processes(lines: list[Line]) -> list[CapturedProcess]:
    exits = {line.pid for line in _of(lines, "exit")}
    used = {line.pid for line in lines if line.event not in OF_ANY}
    idle = {line.pid for line in lines if line.event in EXPORTS} - used
    failed, processes = _of(lines, "hook_failed"), []
    begun = {line.pid: line for line in _of(lines, "process") if line.pid not in idle}
    for pid, line in begun.items():
        failures = {str(each.facts.get("error")) for each in failed if each.pid == pid}
        facts = {**line.facts, "exited": pid in exits, "hook_failures": sorted(failures)}
        processes += _built(CapturedProcess, facts)
    return processes


def _phases(lines: list[Line], phase: tuple[str, str, str, str], kind: type[R]) -> list[R]:
    """Read the records of one kind of phase, each from the event that begins it and the one that ends it."""
    begin, number, well, badly = phase
    ended = (line for line in lines if line.event in (well, badly))
    ends = {(line.pid, str(line.facts.get(number))): line for line in ended}
    found = []
    for line in _of(lines, begin):
        end = ends.get((line.pid, str(line.facts.get(number))))
        joined = {**line.facts, "number": line.facts.get(number)}
        if end is not None and end.event == badly:
            joined = _failed(joined, end.facts)
        elif end is not None:
            joined |= _ended(end.facts) | {"outcome": "ok"}
        found += _built(kind, _of_phase(joined))
    return found


def _single(lines: list[Line], event: str, kind: type[R]) -> list[R]:
    """Read the records that consist of one event."""
    found = [line.facts for line in _of(lines, event)]
    whole = [_failed(facts, facts) if event.endswith("_failed") else facts for facts in found]
    return [record for facts in whole for record in _built(kind, _of_phase(facts))]


def _failed(begun: Facts, end: Facts) -> dict[str, object]:
    return {**begun, **_ended(end), "outcome": "failed", "error": end}


def _ended(end: Facts) -> dict[str, object]:
    return {key: end[key] for key in OF_THE_END if end.get(key) is not None}


def _of_phase(event: Facts) -> Facts:
    """The fields of a phase. `file` is None if the file no longer exists."""
    facts = {**event, "copy_path": event.get("copy")}
    frames = event.get("frames")
    if isinstance(frames, list):
        parts = [frame for frame in frames if isinstance(frame, dict)]
        facts["stack"] = [{key: part.get(key) for key in ModelLocation.model_fields} for part in parts]
    if event.get("package") is None:
        facts["package"] = event.get("package_path")
    return facts if Path(str(event.get("file"))).exists() else facts | {"file": None}


def _built(kind: type[R], facts: Facts) -> list[R]:
    """A list with the record, or an empty list if the event is damaged."""
    try:
        return [kind.model_validate(facts)]
    except ValidationError:
        return []


SLOWER = 100.0  # ratio to any earlier call
LARGER = 8.0  # how many times more elements than the largest earlier call still count as comparable


def stalled_call(seen: Captured, now: float, least_s: float) -> CapturedCall | None:
    """The call in progress if it takes far longer than other calls of its load; else None.

    `now` is wall-clock time in seconds. A call younger than `least_s` is not stalled. Return None if no call
    of that load has succeeded, if the successful calls were much smaller, or if several calls are in
    progress, because their threads may wait for each other.
    """
    under_way = [call for call in seen.calls if call.outcome == "unfinished" and not call.in_graph]
    if len(under_way) != 1:
        return None
    call = under_way[0]
    alike = [c for c in seen.calls if (c.pid, c.load, c.outcome) == (call.pid, call.load, "ok")]
    if not alike or _elements(call) > LARGER * max(map(_elements, alike)):
        return None
    usual = max(earlier.seconds or 0.0 for earlier in alike)
    return call if now - call.t >= max(least_s, SLOWER * usual) else None


def _elements(call: CapturedCall) -> int:
    return sum(prod(leaf.shape or ()) for leaf in call.leaves)


LAST_BYTES = 1 << 16
# What a process is doing if this event of the hook or worker is the last in its journal.
DOING = {
    "attempting": "{step}",
    "calling": "a call is running",
    "called": "a call has returned",
    "compiling": "a compile is running",
    "compiled": "a compile has ended",
    "exporting": "an export is running",
    "exported": "an export has ended",
    "loading": "a package is being loaded",
    "timing": "now {about}",
}


def doing(journal: Path) -> str:
    """Say what the process that writes this journal is doing, from its last event. Empty if unknown."""
    event = _last_event(journal)
    try:
        return DOING.get(str(event["event"]), "").format_map(event)
    except KeyError:  # an event without the field
        return ""


# The build that an event begins. It lasts until the next event.
BUILDS = {"exporting": "exporting", **dict.fromkeys(("compiling", "attempting"), "compiling")}


def building(directory: Path) -> str:
    """What a process does in `directory`: `exporting`, `compiling` or `importing torch`; else ""."""
    if any(directory.glob("importing-*")):
        return "importing torch"
    events = (_last_event(journal).get("event") for journal in directory.glob("*.jsonl"))
    return next((BUILDS[str(event)] for event in events if event in BUILDS), "")


def _last_event(journal: Path) -> Facts:
    """The last event of a journal. Empty if the last line is cut or is not an event."""
    with journal.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        last = file.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    with suppress(ValueError):
        event = json.loads(last)
        return event if isinstance(event, dict) and "event" in event else {}
    return {}
