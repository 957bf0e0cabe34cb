"""Chooses the calls of a recording that most likely failed, and replays them until one fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import gt
from pathlib import Path
from statistics import median

import anyio.to_thread

from mcp_server.errors import ProblemError, argument
from mcp_server.jobs.child import Finished
from mcp_server.logs.journal import DTYPES
from mcp_server.model import CallNumber, ModelLocation, PackageWorkload
from mcp_server.package.archive import open_package
from mcp_server.plurals import counted
from mcp_server.recorder.core_file import MODE, calls_of_core, is_core
from mcp_server.recorder.package import build_id_of, library_in
from mcp_server.recorder.remains import host_lines, read_maps, signal_name
from mcp_server.recorder.ring import RecordedCall, RecordedModel, Recording, read_recording, recordings_in
from mcp_server.runtime.context import Context, gpus_of
from mcp_server.worker.protocol import RebuildRequest, RecordedTensor

KNOWN_DTYPES = frozenset(DTYPES.values())
MOST_LAST = 32  # calls on a device, which return before their kernels have run
MOST_READ = 8  # the newest recordings of a folder
MOST_REPLAYED = 8  # candidates to replay
REPLAY_S = 120.0


_CAPTURE = re.compile(r"(?P<kernel>\w+)_(?P<tag>[^_]+)_req(?P<request>\d{1,9})\.pt")


@dataclass(frozen=True)
class KernelCapture:
    """A file of torch's kernel capture (`AOTI_KERNEL_CAPTURE_DIR`): the arguments of one launch before it."""

    path: Path
    kernel: str
    tag: str
    request: int


def captures_in(folder: Path) -> list[KernelCapture]:
    """List the kernel captures of a folder by their names, the newest request first."""
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [(path, match) for path in names if (match := _CAPTURE.fullmatch(path.name)) is not None]
    rows = [KernelCapture(path, each["kernel"], each["tag"], int(each["request"])) for path, each in found]
    return sorted(rows, key=lambda each: -each.request)


@dataclass(frozen=True)
class Candidate:
    """A call that may be at fault, and the reason to examine it."""

    recording: Recording
    call: RecordedCall
    why: str
    suspect: bool = True  # it failed, or was in flight; others returned

    @property
    def model(self) -> RecordedModel:
        return self.recording.models[self.call.model]

    @property
    def number(self) -> str:
        """The call's number. Sequences count per slot, and one thread at a time uses a slot."""
        if not self.call.sequence:
            return f"the call of thread {self.call.thread}, process {self.recording.pid}"
        return f"call {self.call.sequence} of thread {self.call.thread}, process {self.recording.pid}"

    @property
    def updates(self) -> int:
        """How often the weights were updated before the call ended, or before the host ended.

        A call that returned is no suspect: later calls may have had other weights.
        """
        after = self.call.generation_after if self.suspect else None
        return max(self.call.generation, self.model.updates) if after is None else after

    @property
    def missing(self) -> str:
        """What was not kept of the call, in words. Empty if everything was kept."""
        if self.call.total_inputs > len(self.call.inputs):
            return f"{self.call.total_inputs - len(self.call.inputs)} of {self.call.total_inputs} inputs"
        gone = [
            f"input {number} ({each.dtype}{list(each.sizes)}, {each.span} bytes)"
            for number, each in enumerate(self.call.inputs)
            if (each.span and each.bytes is None) or each.dtype not in KNOWN_DTYPES
        ]
        return ", ".join(gone)


def candidates(recording: Recording) -> Iterator[Candidate]:
    """Yield the crashing thread's call, other calls in flight and calls with an error; else the last ones.

    On a device a call returns before its kernels have run, so after a crash the fault may be in any of the
    last calls.
    """
    crash = recording.crash
    flying = [call for call in recording.calls if call.end_ns is None]
    crashed = [call for call in flying if crash is not None and call.thread == crash.thread]
    rest = [call for call in flying if call not in crashed]
    failed = [call for call in reversed(recording.calls) if call.end_ns is not None and call.code != 0]
    for call in crashed:
        yield Candidate(recording, call, "its thread got the fatal signal")
    for call in failed if recording.ended or recording.alive else ():
        yield Candidate(recording, call, f"it returned error code {call.code}")
    for call in reversed(rest):
        how = "when the process died" if not recording.alive else "when the recording was read"
        yield Candidate(recording, call, f"it was in flight {how}")
    for call in failed if not (recording.ended or recording.alive) else ():
        yield Candidate(recording, call, f"it returned error code {call.code}")
    seen = {id(call) for call in (*flying, *failed)}
    last = [call for call in reversed(recording.calls) if id(call) not in seen]
    on_device = [call for call in last if call.on_device][:MOST_LAST]
    for call in on_device:
        yield Candidate(recording, call, "its kernels may still have run at the end", False)
    if on_device:
        return
    yield from (Candidate(recording, call, "it is the last call that returned", False) for call in last[:1])
    # Another call says nothing about one that failed.
    newest = next((call for call in last if call.complete), None) if not (crashed or failed) else None
    if newest is not None and newest is not last[0]:
        why = "it is the last call that returned and of which all was kept"
        yield Candidate(recording, newest, why, False)


@dataclass(frozen=True)
class Replayed:
    """A candidate that was replayed, and how the replay ended."""

    candidate: Candidate
    inputs: Path
    finished: Finished


@dataclass(frozen=True)
class TakenCall:
    """A call from a recording: the file of its inputs, its number, and the host's lines that make it."""

    inputs: Path
    number: CallNumber | None  # None if the recording does not number its calls
    lines: list[ModelLocation]
    facts: list[str]
    updates: int = 0  # of the weights, before the call or while it ran
    open: str = ""  # why it proves little that the call returns when it is repeated alone


async def take_call(context: Context, folder: Path, workload: PackageWorkload) -> TakenCall:
    """Return the first candidate that fails when replayed, or the first that can be replayed.

    `workload` is the package. If no candidate can be replayed, raise `ProblemError` that says what was not
    kept.
    """
    found = await candidates_in(folder, workload, context)
    replayed: list[Replayed] = []
    for candidate in [each for each in found if not each.missing][:MOST_REPLAYED]:
        replayed.append(await _replay(candidate, len(replayed), workload, context))
        if not replayed[-1].finished.ok:
            break
    if not replayed:
        first = found[0]
        raise ProblemError(
            f"the values of {first.number} were not all kept ({first.why}): missing are {first.missing}",
            value=str(folder),
            allowed="a recording with mode full, a larger --ring-mb, or a core file with these inputs",
            next_call="aoti-debug record model.pt2 --mode full",
        )
    chosen = replayed[-1] if not replayed[-1].finished.ok else replayed[0]
    call, recording = chosen.candidate.call, chosen.candidate.recording
    last = max(each.sequence for each in recording.calls if each.slot == call.slot)
    maps = read_maps(recording.maps)
    found_lines = await anyio.to_thread.run_sync(lambda: list(host_lines(call.stack, maps)))
    lines = [ModelLocation(file=e.file, line=e.line, code=_code(e.file, e.line)) for e in found_lines]
    facts = list(_told(chosen, replayed, found, workload.package.name))
    if lines:
        facts.append(
            f"the host calls the package at {lines[0].file}:{lines[0].line}  {lines[0].code}".rstrip()
        )
    return TakenCall(
        chosen.inputs,
        CallNumber(number=call.sequence, of=last) if call.sequence else None,
        lines,
        facts,
        chosen.candidate.updates,
        _open(chosen.candidate, found) if chosen.finished.ok else "",
    )


DIED_ELSEWHERE = (
    "The host died of {}, but the recorded call returns when it is repeated alone, with the package's "
    "weights. Look at the core file, or diagnose the host itself: other threads or weights may matter."
)


def _open(chosen: Candidate, found: Sequence[Candidate]) -> str:
    """What remains open if the chosen call returns: another call that is more suspect, or a signal."""
    lost = "" if chosen.suspect else _lost(found, chosen.recording)
    crash = chosen.recording.crash
    return lost or (DIED_ELSEWHERE.format(signal_name(crash.signal)) if crash is not None else "")


def _lost(found: Sequence[Candidate], recording: Recording) -> str:
    """Describe the call that most likely ended the host and could not be made again. Empty if there is none.

    It failed, or was in flight, or it is the last one.
    """
    lost = next((each for each in found if each.missing), None)
    if lost is None:
        return ""
    call = lost.call
    others = [each for each in recording.calls if each.end_ns is not None and not each.code and each != call]
    text = f"The call to look at is {lost.number}: {lost.why}. "
    text += f"It could not be repeated: {lost.missing} was not kept."
    for number, given in enumerate(call.inputs):
        alike = [each.inputs[number].sizes for each in others if len(each.inputs) == len(call.inputs)]
        alike = [sizes for sizes in alike if sizes != given.sizes]
        most = [max(sizes) for sizes in zip(*alike, strict=False)]
        if len(most) == len(given.sizes) and any(map(gt, given.sizes, most)):
            text += f" Its input {number} has sizes {list(given.sizes)}, and other calls at most {most}."
    if call.end_ns is not None and others:
        usual = median((each.end_ns or 0) - each.begin_ns for each in others) / 1e6
        text += (
            f" It took {(call.end_ns - call.begin_ns) / 1e6:.0f} ms; the median of others is {usual:.3g} ms."
        )
    specs = json.dumps([{"shape": list(each.sizes), "dtype": each.dtype} for each in call.inputs])
    return f"{text} To try its sizes with random values, give the package {argument('inputs')} '{specs}'."


async def candidates_in(folder: Path, workload: PackageWorkload, context: Context) -> list[Candidate]:
    """List this package's calls in a core file or the newest recordings, in the order to examine them."""
    package = await anyio.to_thread.run_sync(open_package, workload.package, workload.model_name)
    paths, read = [folder], read_recording
    if is_core(folder):
        library = await anyio.to_thread.run_sync(library_in, package, context.directory)
        read = partial(calls_of_core, package=package, library=library)
    else:
        paths = recordings_in(folder)[:MOST_READ]
    build_id = await anyio.to_thread.run_sync(build_id_of, package)
    found: list[Candidate] = []
    others: set[str] = set()
    unreadable: list[ProblemError] = []
    for path in paths:
        try:
            recording = await anyio.to_thread.run_sync(read, path)
        except ProblemError as problem:
            unreadable.append(problem)
            continue
        for candidate in candidates(recording):
            known = candidate.model.build_id
            if build_id and known and known != build_id:
                others.add(f"{Path(candidate.model.path).name} (build {known[:12]})")
            else:
                found.append(candidate)
    if found:
        return found
    if unreadable and not others:
        raise unreadable[0]
    named = f"the package of its models: {', '.join(sorted(others))}" if others else "a recording with calls"
    raise ProblemError(
        "the recording has no call of this package",
        value=str(folder),
        allowed=named,
        next_call=f"aoti-debug recordings {folder}",
    )


async def _replay(candidate: Candidate, number: int, workload: PackageWorkload, context: Context) -> Replayed:
    inputs = context.directory / f"recorded-call-{number}.pt"
    tensors: list[RecordedTensor] = [
        {
            "file": str(each.bytes.file) if each.bytes else "",
            "offset": each.bytes.offset if each.bytes else 0,
            "length": each.span,
            "dtype": each.dtype,
            "device": each.device,
            "sizes": list(each.sizes),
            "strides": list(each.strides),
        }
        for each in candidate.call.inputs
    ]
    request: RebuildRequest = {"operation": "rebuild", "tensors": tensors, "out": str(inputs)}
    made = await context.worker("rebuild", request, name="rebuild-inputs", workload=workload)
    if not made.finished.ok:
        raise ProblemError(f"the recorded inputs could not be rebuilt: {made.why}", value=candidate.number)
    asked = {
        "package": str(workload.package),
        "model_name": workload.model_name,
        "device_index": workload.device_index,
        "inputs": str(inputs),
        "extra_imports": workload.extra_imports,
    }
    gpus = gpus_of("cuda" if candidate.call.on_device else "cpu", workload.device_index)
    limited = workload.model_copy(update={"timeout_s": min(workload.timeout_s, REPLAY_S)})
    done = await context.worker("run", asked, name="replay", workload=limited, gpus=gpus)
    return Replayed(candidate, inputs, done.finished)


def _code(file: str, line: int) -> str:
    """Return the text of a host's source line. Empty if the source is not on this machine."""
    path = Path(file)
    try:
        with path.open(encoding="utf-8", errors="replace") as source:
            return next((text.strip()[:200] for at, text in enumerate(source, 1) if at == line), "")
    except OSError:
        return ""


def _told(
    chosen: Replayed, replayed: Sequence[Replayed], found: Sequence[Candidate], package: str
) -> Iterator[str]:
    """Yield what the reader must know about the call: which one it is, and what was tried first."""
    candidate, call = chosen.candidate, chosen.candidate.call
    when = {each.kept for each in call.inputs if each.bytes is not None}
    kept = "its inputs were copied " + " and ".join(sorted(when)) if when else "its inputs are empty"
    what = "core file" if candidate.recording.mode == MODE else "recording"
    yield f"the {what} has {candidate.number}, of {package}: {candidate.why}; {kept}"
    if candidate.recording.mode == MODE:
        yield "the call was made with the package's own weights: a core file does not record new weights"
    after = candidate.updates
    recording = candidate.recording
    # Only a crash file that is there and empty shows that no signal was handled.
    watched = recording.path.with_suffix(".crash").is_file() and recording.crash is None
    if watched and not (recording.ended or recording.alive):
        yield (
            "the process left no fatal signal: if it did not end by itself, it was killed from outside "
            "(SIGKILL: an operator, a supervisor, or the kernel when memory runs out)"
        )
    if after:
        before = f"the host had updated the weights {counted(call.generation, 'time')} before the call"
        during = counted(after - call.generation, "time")
        if after > call.generation:
            then = "while it ran" if candidate.suspect else "while it ran or later"
            alone = f"the host updated the weights {during} after the call began"
            before = f"{before}, and {during} {then}" if call.generation else alone
        yield f"{before}; it was repeated with those of the package"
    passed = [each for each in replayed if each.finished.ok and each is not chosen]
    if passed:
        yield f"{len(passed)} other recorded calls return when they are repeated"
    if chosen.finished.ok and call.end_ns is not None and not call.code:
        yield "the call returned in the host, and returns when it is repeated alone"
    elif chosen.finished.ok:
        yield "the call returns when it is repeated alone: its failure may depend on what else was running"
    lost = [each for each in found if each.missing and each.suspect]
    if lost:
        yield f"{lost[0].number} could not be repeated: {lost[0].missing} was not kept"
