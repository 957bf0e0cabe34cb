"""Chooses the calls of a recording that most likely failed, and replays them until one fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import gt
from pathlib import Path
from statistics import median

import anyio.to_thread

from mcp_server.errors import ProblemError, argument
from mcp_server.jobs.child import Finished
from mcp_server.logs.captured import CapturedUpdate, Leaf, MemoryEvent
from mcp_server.logs.journal import DTYPES
from mcp_server.model import CallNumber, ModelLocation, PackageWorkload, Record
from mcp_server.package.archive import Package, open_package
from mcp_server.package.mismatch import GivenTensor, compare_inputs
from mcp_server.package.terms.sizes import index_at
from mcp_server.package.terms.term import itemsize_of
from mcp_server.plurals import capitalized, counted
from mcp_server.recorder.core_file import MODE, calls_of_core, is_core
from mcp_server.recorder.package import build_id_of, library_in
from mcp_server.recorder.remains import (
    OF_MEMORY,
    CrashSite,
    Death,
    crash_site,
    host_lines,
    library_of,
    mapping_at,
    read_maps,
    signal_name,
)
from mcp_server.recorder.remains import Mapping as Mapped
from mcp_server.recorder.ring import (
    Crash,
    RecordedCall,
    RecordedInput,
    RecordedModel,
    RecordedWeights,
    Recording,
    read_recording,
    recordings_in,
    refused,
)
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.worker.events import Called, Inputs
from mcp_server.worker.protocol import RebuildRequest, RecordedTensor, ReplayRequest, Step

KNOWN_DTYPES = frozenset(DTYPES.values())
MOST_LAST = 32  # last calls on a device to look at: they return before their kernels ran
MOST_READ = 8  # newest recordings of a folder that are read
MOST_REPLAYED = 8  # candidates to replay
MOST_OPEN = 64  # the same if a thread without a call died (an OpenMP worker): any open call may be to blame
REPLAY_S = 120.0


_CAPTURE = re.compile(r"(?P<kernel>\w+)_(?P<tag>[^_]+)_req(?P<request>\d{1,9})\.pt")


class KernelCapture(Record):
    """A file of torch's kernel capture (`AOTI_KERNEL_CAPTURE_DIR`): arguments of one launch before it ran."""

    path: Path
    kernel: str
    tag: str
    request: int


def captures_in(folder: Path) -> list[KernelCapture]:
    """List the kernel captures of a folder by their names, the newest request first."""
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [(path, match) for path in names if (match := _CAPTURE.fullmatch(path.name)) is not None]
    rows = [KernelCapture.model_validate({"path": path, **match.groupdict()}) for path, match in found]
    return sorted(rows, key=lambda each: -each.request)


@dataclass(frozen=True)
class Candidate:
    """A call that may be at fault, and the reason to examine it."""

    recording: Recording
    call: RecordedCall
    why: str
    suspect: bool = True  # the call failed or was in flight; others returned

    @property
    def model(self) -> RecordedModel:
        models = self.recording.models  # a host that died before its first call has none
        return models[self.call.model] if models else RecordedModel("", "", 0)

    @property
    def number(self) -> str:
        """The call in words, with its number among the package's calls and among its thread's.

        The number in a thread counts calls of all packages. A core file has no numbers.
        """
        if not self.call.number:
            return f"the call of thread {self.call.thread}"
        of = "all packages in thread" if self.recording.models[1:] else "thread"
        own = f"number {self.call.sequence} of {of} {self.call.thread}"
        return f"call {self.call.number} of process {self.recording.pid} ({own})"

    @property
    def weights(self) -> RecordedWeights:
        """The host's constants before the call, or the newest if these are unknown and the call returned."""
        own = self.model.weights_at(self.call.generation)
        return own if own.constants or self.suspect else self.model.weights_at(self.model.updates)

    @property
    def updates(self) -> int:
        """How often the weights were updated before the call ended, or before the host ended.

        For a call that is not `suspect`, all updates count: a later call with other weights may have failed.
        """
        after = self.call.generation_after if self.suspect else None
        return max(self.call.generation, self.model.updates) if after is None else after

    @property
    def missing(self) -> str:
        """The parts of the call that were not kept, in words. Empty if everything was kept."""
        if self.call.total_inputs > len(self.call.inputs):
            return f"{self.call.total_inputs - len(self.call.inputs)} of {self.call.total_inputs} inputs"
        gone = [
            f"input {number} ({each.form}, {each.span} bytes)"
            for number, each in enumerate(self.call.inputs)
            if (each.span and each.bytes is None) or each.dtype not in KNOWN_DTYPES
        ]
        return ", ".join(gone)


def candidates(recording: Recording, package: Package | None = None) -> Iterator[Candidate]:
    """Yield calls that may be at fault: of the crashing thread, in flight, with an error, or the last.

    Calls with inputs for which the `package` was not compiled come before others of the same kind.
    """
    calls, crash = recording.calls[::-1], recording.crash
    own = [call for call in calls if crash is not None and call.thread == crash.thread]
    # Without an open call, the host may have read the results of its last one.
    crashed = [call for call in own if call.end_ns is None] or own[:1]
    yield from (_of_crashed(recording, call) for call in crashed)
    flying = [call for call in calls if call.end_ns is None and call not in crashed]
    flying.sort(key=lambda each: package is None or not _misfit(each, package))
    failed = [call for call in calls if call.end_ns is not None and call.code and call not in crashed]
    went_on = recording.ended or recording.alive
    for call in (*failed, *flying) if went_on else (*flying, *failed):
        when = "when the process died" if not recording.alive else "when the recording was read"
        why = f"it was in flight {when}" if call.end_ns is None else f"it returned error code {call.code}"
        yield Candidate(recording, call, why)
    last = [call for call in calls if call.end_ns is not None and not call.code]
    if crash is None and package is not None and not (flying or failed):
        told = ((call, said) for call in last if (said := _misfit(call, package)))
        for call, said in islice(told, 1):
            yield Candidate(recording, call, f"it returned, but {said}", False)
    yield from _returned(
        recording, last, only_last=any(each.end_ns is None for each in crashed) or bool(failed)
    )


LAST_OF_CRASHED = "it is the last call of the thread that got the fatal signal"


def _of_crashed(recording: Recording, call: RecordedCall) -> Candidate:
    if call.end_ns is None:
        return Candidate(recording, call, "its thread got the fatal signal")
    code = f", and returned error code {call.code}" if call.code else ""
    return Candidate(recording, call, LAST_OF_CRASHED + code, bool(code))


def _misfit(call: RecordedCall, package: Package) -> str:
    """Say which input of a call the package was not compiled for. Empty if all fit or not all are known."""
    given = [GivenTensor(each.dtype, each.sizes, each.strides, each.device) for each in call.inputs]
    found = compare_inputs(package.signature, given) if call.total_inputs == len(given) else []
    return found[0].sentence if found and found[0].severity == "fatal" else ""


def _returned(recording: Recording, last: Sequence[RecordedCall], only_last: bool) -> Iterator[Candidate]:
    """Yield the last calls that returned, newest first: on a device, all whose kernels may still have run."""
    on_device = [call for call in last if call.on_device][:MOST_LAST]
    for call in on_device:
        yield Candidate(recording, call, "its kernels may still have run at the end", False)
    if on_device:
        return
    yield from (Candidate(recording, call, "it is the last call that returned", False) for call in last[:1])
    # An older call says nothing about one that failed.
    newest = next((call for call in last if call.complete), None) if not only_last else None
    if newest is not None and newest is not last[0]:
        why = "it is the last call that returned and of which all was kept"
        yield Candidate(recording, newest, why, False)


@dataclass(frozen=True)
class Replayed:
    """A candidate that was replayed, and how the replay ended."""

    candidate: Candidate
    inputs: Path
    finished: Finished
    weights: CapturedUpdate | None  # the host's weights at the call
    nonfinite: bool

    @property
    def failed(self) -> bool:
        return not self.finished.ok or self.nonfinite


def _changes(recording: Recording, model: RecordedModel) -> Iterator[MemoryEvent]:
    """Yield the writes of a host to memory that calls of a model read."""
    calls = {(each.slot, each.sequence): each for each in recording.calls}
    for each in recording.changes:
        call = calls.get((each.slot, each.sequence))
        if call is None or recording.models[call.model] is not model:
            continue
        told = f"call {call.number} of thread {call.thread}"
        written = partial(MemoryEvent, pid=0, n=1, act="written")  # n: after the update
        if each.input < len(call.inputs):
            given = call.inputs[each.input]
            at = index_at(each.offset // itemsize_of(given.dtype), given.sizes, given.strides)
            told += f" (from element {list(at or ())} of {given.form} on)"
            yield written(storage="input", interval="call", input=each.input, during=told)
        elif each.before:
            yield written(storage="constant", interval="update", names=[each.name], during=told)
        else:
            yield written(storage="constant", interval="call", names=[each.name], during=told)


@dataclass(frozen=True)
class TakenCall:
    """A call from a recording: the file of its inputs, its number, and the host's lines that make it.

    `inputs` is None if no call could be repeated. `site` is where the host died outside of calls.
    `input_at_fault` is the input whose memory the fatal access hit.
    """

    inputs: Path | None
    number: CallNumber | None  # None if the recording does not number its calls
    lines: list[ModelLocation]
    facts: list[str]
    updates: int = 0  # updates of the weights, before the call or while it ran
    weights: CapturedUpdate | None = None  # given by the updates, if all values were kept
    open: str = ""  # why a repeated call that returns proves little
    site: CrashSite | None = None
    input_at_fault: int | None = None
    made_at: Mapping[int, ModelLocation] = field(default_factory=dict)  # the lines that make inputs
    on_ended_frame: int | None = None  # number of an input in the stack frame of a function that has returned
    changes: Sequence[MemoryEvent] = ()  # of memory that calls read
    short: Mapping[int, int] = field(default_factory=dict)  # bytes of blocks shorter than the input
    program: Path | None = None  # program of a host without Python; None if it has Python, or unknown


async def take_call(context: Context, folder: Path, workload: PackageWorkload) -> TakenCall:
    """The first candidate that fails when replayed, or the first that can be replayed.

    `workload` is the package. If no candidate can be replayed, and nothing says how the host died, raise
    `ProblemError` that says what was not kept.
    """
    found = await candidates_in(folder, workload, context)
    replayed: list[Replayed] = []
    for candidate in [each for each in found if not each.missing][: _most(found)]:
        replayed.append(await _replay(candidate, len(replayed), workload, context))
        if replayed[-1].failed:
            break
    if replayed:
        return await anyio.to_thread.run_sync(_taken, replayed, found, workload.package.name)
    if (died := await anyio.to_thread.run_sync(_died, found)) is not None:
        return died
    first = found[0]
    raise ProblemError(
        f"the values of {first.number} were not all kept ({first.why}): missing are {first.missing}",
        value=str(folder),
        allowed="a recording with mode full, a larger `ring_mb`, or a core file with these inputs",
        next_call="aoti-debug record model.pt2 --mode full",
    )


def _taken(replayed: Sequence[Replayed], found: Sequence[Candidate], package: str) -> TakenCall:
    """Describe the last replayed call if it failed, otherwise the first."""
    chosen = replayed[-1] if replayed[-1].failed else replayed[0]
    call, recording = chosen.candidate.call, chosen.candidate.recording
    maps, crash = read_maps(recording.maps), recording.crash
    inside = crash is not None and crash.thread == call.thread and call.end_ns is None
    lines = _lines(call.stack or (crash.stack if crash is not None and inside else ()), maps)
    made = [_lines(sites, maps) for sites in call.sites]
    facts = list(_told(chosen, replayed, found, package))
    if lines:
        facts.append(
            f"the host calls the package at {lines[0].file}:{lines[0].line}  {lines[0].code}".rstrip()
        )
    site, input_at_fault = _where_it_died(recording, [chosen.candidate, *found])
    # Without a failure, the verdict is not about this call.
    numbered = call.number and (site is None or chosen.failed or call.code)
    of = max(call.number, chosen.candidate.model.calls)
    below = [call.host_sp - each.address for each in call.inputs]
    return TakenCall(
        chosen.inputs,
        CallNumber(number=call.number, of=of) if numbered else None,
        lines,
        facts,
        updates=chosen.candidate.updates,
        weights=chosen.weights,
        open=_open(chosen.candidate, found) if not chosen.failed else "",
        site=site,
        input_at_fault=input_at_fault,
        made_at={number: _maker(places[0]) for number, places in enumerate(made) if places},
        # The first input just below the host's stack pointer, where none of its live variables can be.
        on_ended_frame=next((n for n, each in enumerate(below) if 0 < each < TORCH_FRAMES), None),
        changes=list(_changes(recording, chosen.candidate.model)),
        short={n: block for n, block in enumerate(call.blocks) if 0 < block < call.inputs[n].span},
        program=program_of(recording),
    )


def program_of(recording: Recording) -> Path | None:
    """The program of a process that had no Python. None if it had, or if its mapped files are unknown."""
    paths = [each.path for each in read_maps(recording.maps)]
    if any(library_of(path).startswith(("python", "libpython", "libtorch_python")) for path in paths):
        return None
    return next((Path(path) for path in paths if ".so" not in library_of(path)), None)


def _most(found: Sequence[Candidate]) -> int:
    crash = found[0].recording.crash
    known = crash is None or any(each.call.thread == crash.thread for each in found)
    return MOST_REPLAYED if known else MOST_OPEN


def _lines(stack: Sequence[int], maps: Sequence[Mapped]) -> list[ModelLocation]:
    found = host_lines(stack, maps)
    return [ModelLocation(file=e.file, line=e.line, code=_code(e.file, e.line)) for e in found]


def _maker(found: ModelLocation) -> ModelLocation:
    """The line that calls at::from_blob. The found line may be just after it, because the call is inlined."""
    before = ((line, _code(found.file, line)) for line in range(found.line, max(found.line - 5, 0), -1))
    line, code = next((each for each in before if "from_blob" in each[1]), (found.line, found.code))
    return ModelLocation(file=found.file, line=line, code=code)


TORCH_FRAMES = 1 << 16  # bytes of stack that torch uses between the host and the package


def _where_it_died(recording: Recording, found: Sequence[Candidate]) -> tuple[CrashSite | None, int | None]:
    """Where the host died, and the input with the accessed address. None if the call itself died."""
    crash = recording.crash
    if crash is None:
        return None, None
    maps = read_maps(recording.maps)
    site = crash_site(crash.signal, crash.thread, crash.address, crash.sp, crash.stack, maps, crash.said)
    written = next(filter(None, (_written_anew(each.path, recording) for each in recording.models)), "")
    site = replace(site, death="file", memory=written) if written else site
    for each in found:
        for number, given in enumerate(each.call.inputs if each.call.end_ns is None else ()):
            if given.address and 0 <= crash.address - given.address < given.span:
                return replace(site, inside=each.call.thread), number
    flying = [each.call.thread for each in found if each.call.end_ns is None]
    inside = crash.thread in flying
    last = next((each for each in reversed(recording.calls) if each.thread == crash.thread), None)
    for death, story in _STORIES.items() if last is not None else ():
        if told := story(crash, last, recording, maps):
            return replace(site, death=death, memory=told, inside=crash.thread), None
    served = [*flying, *_serving(crash, recording)]
    if recording.exits and (served or crash.thread != recording.pid):
        return replace(site, death="exit", inside=crash.thread if inside else next(iter(served), 0)), None
    if inside and site.death not in OF_MEMORY:
        return None, None
    # A loader also enters the library without a recorded call, for instance for its call specification.
    libraries = {each.path for each in recording.models}
    entered = any((at := mapping_at(each, maps)) and at.path in libraries for each in crash.stack)
    inside |= entered and site.death in OF_MEMORY
    return replace(site, inside=crash.thread if inside else 0), None


SERVES_NS = 100_000_000  # a thread whose last call ended less than this ago still serves


def _serving(crash: Crash, recording: Recording) -> list[int]:
    """The threads that still lived when another one died, and whose last call had just ended."""
    newest = {call.slot: call for call in recording.calls if crash.alive >> call.slot & 1}
    return [e.thread for e in newest.values() if _died_ns(recording) - (e.end_ns or 0) < SERVES_NS]


def _died_ns(recording: Recording) -> int:
    return recording.path.with_suffix(".crash").stat().st_mtime_ns


def _deleted_under(crash: Crash, last: RecordedCall, recording: Recording, maps: Sequence[Mapped]) -> str:
    """Say where the host destroyed the loader that the crashed thread still called. Empty if it did not.

    The thread must have died in its last call, at the line of this call, or just after it on a stack that
    cannot be read. Empty if a later call of the model returned: it had another loader.
    """
    model = recording.models[last.model]
    if not model.deleted_ns or model.deleted_by == crash.thread:
        return ""
    later = [e for e in recording.calls if e.model == last.model and e.begin_ns > model.deleted_ns]
    own, soon = _lines(crash.stack, maps)[:1], _died_ns(recording) - (last.end_ns or 0) < SERVES_NS
    there = last.end_ns is None or (own == _lines(last.stack, maps)[:1] if own else soon)
    if not there or any(each.end_ns is not None and not each.code for each in later):
        return ""
    at = _at(model.deleted_at, maps)
    return f"thread {model.deleted_by} had destroyed the loader{at}, and this thread still called the package"


def _updated_under(_: Crash, last: RecordedCall, recording: Recording, maps: Sequence[Mapped]) -> str:
    """Say if the weights in use were updated during the last call of the crashed thread. Empty if not.

    Such an update takes no lock; one of the other buffer does no harm, and a swap waits for the calls
    (model_container.h 2.8-2.15). Of several updates, the recording may have only a later one.
    """
    model = recording.models[last.model]
    until = model.updates if last.generation_after is None else last.generation_after
    found = [e for e in model.weights if e.number > last.generation and not e.inactive]
    if not found or until == last.generation:
        return ""
    told = f"the host updated the weights in use{_at(found[0].stack, maps)} while its last call ran"
    return f"{told}: it began after update {last.generation}, and update {until} began before it ended"


_STORIES: dict[Death, Callable[..., str]] = {"deleted": _deleted_under, "updated": _updated_under}


def _at(stack: Sequence[int], maps: Sequence[Mapped]) -> str:
    return next((f" at {Path(each.file).name}:{each.line}" for each in _lines(stack, maps)), "")


def _written_anew(library: str, recording: Recording) -> str:
    """Say if a library's file was changed between start and crash. Ignore a replaced ("deleted") file."""
    with suppress(OSError):
        died_ns = _died_ns(recording)
        written_ns = Path(library).stat().st_mtime_ns
        if f"{library}\n" in recording.maps and recording.started_ns < written_ns <= died_ns:
            return f"{library} was written to while mapped, {(died_ns - written_ns) / 1e9:.3g} s before"
    return ""


KILLED = (
    "the process left no fatal signal: if it did not end by itself, it was killed from outside "
    "(SIGKILL: an operator, a supervisor, or the kernel when memory runs out)"
)


def _was_killed(recording: Recording) -> bool:
    """Whether the host was watched and is gone, but neither its end nor a fatal signal was recorded."""
    watched = recording.path.with_suffix(".crash").is_file() and recording.crash is None
    return watched and not (recording.ended or recording.alive)


def _died(found: Sequence[Candidate]) -> TakenCall | None:
    """The facts about a host whose calls cannot be repeated. None if not even its death is known."""
    recording = found[0].recording
    site, number = _where_it_died(recording, found)
    suspect = next((each for each in found if each.suspect), None)
    if site is None and (suspect is not None or not _was_killed(recording)):
        return None
    first = found[0]
    lost = f"{first.number} could not be repeated: {first.missing} was not kept"
    facts = [lost] if first.missing and first.call.inputs else []
    text = f"{capitalized(KILLED)}. No call of the package had failed or was open."
    text += f" {capitalized(first.model.memory)}." if first.model.memory else ""
    died = TakenCall(None, None, [], facts, open="" if site else text, site=site, input_at_fault=number)
    return replace(died, program=program_of(recording))


def death_in(folder: Path) -> TakenCall | None:
    """How the newest crashed host in a folder died. None if none crashed, or if its call itself crashed."""
    for path in recordings_in(folder)[:MOST_READ]:
        recording = read_recording(path)
        if recording.crash is not None:
            return _died(list(candidates(recording)) or [_no_call(recording)])
    return None


DIED_ELSEWHERE = (
    "The host died of {}, but the recorded call returns when it is repeated alone. "
    "Look at the core file, or diagnose the host itself: other threads or weights may matter."
)


def _open(chosen: Candidate, found: Sequence[Candidate]) -> str:
    """Say why it proves little if the chosen call returns: a more suspect call, or a fatal signal."""
    lost = "" if chosen.suspect else _lost(found, chosen.recording)
    crash, cut = chosen.recording.crash, chosen.recording.loss
    died = DIED_ELSEWHERE.format(signal_name(crash.signal)) if crash is not None else ""
    return lost or died or (f"{capitalized(cut)}. The call that failed may be one of these." if cut else "")


def _lost(found: Sequence[Candidate], recording: Recording) -> str:
    """Describe the call that most likely ended the host and could not be made again. Empty if there is none.

    It failed, was in flight, or was the last call.
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
        for candidate in candidates(recording, package):
            known = candidate.model.build_id
            if build_id and known and known != build_id:
                others.add(f"{Path(candidate.model.path).name} (build {known[:12]})")
            else:
                found.append(candidate)
        if not found and recording.crash is not None and not recording.calls:
            found.append(_no_call(recording))
        if not recording.calls and recording.loss:
            unreadable.append(refused(recording.loss, path))
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


def _no_call(recording: Recording) -> Candidate:
    """A placeholder for a host that died while no call was open."""
    thread = recording.crash.thread if recording.crash is not None else 0
    call = RecordedCall(0, 0, thread, 0, 0, 0, 0, 0, None, False, 1, ())
    return Candidate(recording, call, "no call was open", False)


async def _replay(candidate: Candidate, number: int, workload: PackageWorkload, context: Context) -> Replayed:
    inputs = context.directory / f"recorded-call-{number}.pt"
    await _rebuild(candidate, candidate.call.inputs, inputs, workload, context)
    weights = await _weights(candidate, number, workload, context)
    asked: ReplayRequest = {
        "package": str(workload.package),
        "model_name": workload.model_name,
        "device_index": workload.device_index,
        "extra_imports": workload.extra_imports,
        "steps": steps_of(inputs, weights),
    }
    gpus = gpus_of("cuda" if candidate.call.on_device else "cpu", workload.device_index)
    limited = workload.model_copy(update={"timeout_s": min(workload.timeout_s, REPLAY_S)})
    done = await context.worker("replay", asked, name="replay", workload=limited, gpus=gpus)
    called = done.last(Called)
    nonfinite = called is not None and any(each.not_finite for each in called.outputs)
    return Replayed(candidate, inputs, done.finished, weights, nonfinite)


def steps_of(inputs: Path, weights: CapturedUpdate | None) -> list[Step]:
    """The steps that repeat a recorded call: put the host's weights in use, and make the call."""
    call: Step = {"do": "call", "file": str(inputs)}
    if weights is None:
        return [call]
    arguments = [False, False, False]
    return [{"do": "constants", "file": str(weights.file), "how": LOAD, "arguments": arguments}, call]


LOAD = "load_constants"  # the update that replays make, and the usual one
_UPDATES = re.compile(r"\b(?:load_constants|update_(?:inactive_)?constant_buffer\w*)(?=\()")


async def _weights(
    candidate: Candidate, number: int, workload: PackageWorkload, context: Context
) -> CapturedUpdate | None:
    """Write the host's weights to a file, as one update. None if there are none, or if values are missing."""
    given = candidate.weights
    package = await anyio.to_thread.run_sync(open_package, workload.package, workload.model_name)
    named = {each.name: each.fqn for each in package.constants}
    found = {named.get(name, name): value for name, value in given.constants.items()}
    if not found or not all(each.bytes or not each.span for each in found.values()):
        return None
    file = context.directory / f"recorded-weights-{number}.pt"
    made = await _rebuild(candidate, list(found.values()), file, workload, context, list(found))
    event = made.last(Inputs)
    leaves = [Leaf(**vars(each)) for each in (event.leaves if event is not None else [])]
    lines = await anyio.to_thread.run_sync(_lines, given.stack, read_maps(candidate.recording.maps))
    how = next((update[0] for line in lines if (update := _UPDATES.search(line.code))), LOAD)
    return CapturedUpdate(
        pid=candidate.recording.pid, n=0, number=0, load=0, outcome="ok", file=file, how=how, stack=lines,
        arguments=[given.inactive, False, False], compiled=list(named.values()),
        constants=dict(zip(found, leaves, strict=False)),
    )  # fmt: skip


async def _rebuild(
    candidate: Candidate,
    recorded: Sequence[RecordedInput],
    out: Path,
    workload: PackageWorkload,
    context: Context,
    names: Sequence[str] = (),
) -> WorkerRun:
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
        for each in recorded
    ]
    request: RebuildRequest = {
        "operation": "rebuild", "tensors": tensors, "names": list(names), "out": str(out)
    }  # fmt: skip
    made = await context.worker("rebuild", request, name="rebuild-inputs", workload=workload)
    if not made.finished.ok:
        raise ProblemError(f"the recorded values could not be rebuilt: {made.why}", value=candidate.number)
    return made


def _code(file: str, line: int) -> str:
    """The text of a host's source line. Empty if the source is not on this machine."""
    with suppress(OSError):
        lines = Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
        return "".join(lines[line - 1 : line]).strip()[:200]
    return ""


def _told(
    chosen: Replayed, replayed: Sequence[Replayed], found: Sequence[Candidate], package: str
) -> Iterator[str]:
    """Yield facts about the chosen call: which it is, what was kept, and which calls were tried before."""
    candidate, call = chosen.candidate, chosen.candidate.call
    when = {each.kept for each in call.inputs if each.bytes is not None}
    kept = "its inputs were copied " + " and ".join(sorted(when)) if when else "its inputs are empty"
    what = "core file" if candidate.recording.mode == MODE else "recording"
    yield f"the {what} has {candidate.number}, of {package}: {candidate.why}; {kept}"
    if candidate.recording.mode == MODE:
        yield "the call was made with the package's own weights: a core file does not record new weights"
    after = candidate.updates
    if _was_killed(candidate.recording):
        yield KILLED
    yield from filter(None, (candidate.recording.loss, candidate.model.memory))
    if after:
        before = (
            f"the host had updated or swapped the weights {counted(call.generation, 'time')} before the call"
        )
        during = counted(after - call.generation, "time")
        if after > call.generation:
            then = "while it ran" if candidate.suspect else "while it ran or later"
            alone = f"the host updated or swapped the weights {during} after the call began"
            before = f"{before}, and {during} {then}" if call.generation else alone
        own = "these" if candidate.weights.number == call.generation else "the newest"
        those = f"{own} weights" if chosen.weights is not None else "those of the package"
        yield f"{before}; it was repeated with {those}"
    passed = [each for each in replayed if each.finished.ok and each is not chosen]
    if passed:
        yield f"repeated, {counted(len(passed), 'other recorded call')} returned"
    if chosen.finished.ok and call.end_ns is not None and not call.code:
        yield "the call returned in the host, and returns when it is repeated alone"
    elif chosen.finished.ok:
        yield "the call returns when it is repeated alone: its failure may depend on what else was running"
    lost = [each for each in found if each.missing and each.suspect]
    if lost:
        yield f"{lost[0].number} could not be repeated: {lost[0].missing} was not kept"
