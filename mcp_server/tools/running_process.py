"""Looks several times at a running process: which threads stay in a package, and what they wait for."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.supervisor import descendants
from mcp_server.model import Attached
from mcp_server.package.view import PackageView, view_package
from mcp_server.recorder.core_file import MOST_CALLS, MemoryReader
from mcp_server.recorder.live_process import open_process
from mcp_server.recorder.package import ORIGINAL, library_in
from mcp_server.recorder.remains import MOST_LOOKED_AT, Remains, deadlocked
from mcp_server.recorder.ring import Recording, read_recording
from mcp_server.runtime.context import Context
from mcp_server.tools.in_package import Reader, ThreadSeen

LOOKS, BETWEEN_S = 3, 2.0  # number of looks, and seconds from the first to the last
LIBRARY, RING = ".wrapper.so", ".ring"


@dataclass(frozen=True)
class Flight:
    """A call in progress: its age, and the usual duration of earlier calls, None if unknown."""

    seconds: float
    usual_s: float | None


@dataclass(frozen=True, kw_only=True)
class Look:
    """A process at one moment. `threads` are those in the package; `outside` are threads for which these wait
    or, if `threads` is empty, threads that wait elsewhere (`Reader.threads`).

    `pool` counts the threads that wait for OpenMP work. `recording` has the content of the file `ring`.
    `inputs` has the dtypes and sizes of the inputs of threads in a launch, if they are still in memory.
    """

    threads: Sequence[ThreadSeen]
    others: int
    pool: int
    ring: Path | None
    recording: Recording | None
    remarks: Sequence[str]
    outside: Sequence[ThreadSeen]
    inputs: Mapping[int, str]

    @property
    def everyone(self) -> tuple[ThreadSeen, ...]:
        return (*self.threads, *self.outside)


@dataclass(frozen=True, kw_only=True)
class ProcessSeen(Look):
    """A running process at the last look. `stayed` are the threads that were in the same place at every look.

    `flights` are the open calls by thread, and `served` is the number of calls that ended between the looks.
    Both come from the recorder's ring file; without one, `flights` is empty and `served` is None.
    """

    pid: int
    view: PackageView
    stayed: frozenset[int]
    flights: Mapping[int, Flight]
    served: int | None

    @property
    def deadlocked(self) -> list[ThreadSeen]:
        """The threads that wait for each other, so that none can go on."""
        stuck = deadlocked({each.thread: each.held_by for each in self.everyone})
        return [each for each in self.everyone if each.thread in stuck] if self.stayed & {*stuck} else []

    @property
    def blocking(self) -> list[ThreadSeen]:
        """The threads that stayed where they were and wait for no other thread, those in a launch first.

        A thread outside the package counts only if another thread waits for it, or if it waits for a lock.
        """
        kept = {each.thread: each.held_by for each in self.everyone if each.thread in self.stayed}
        waited = {holder for holders in kept.values() for holder in holders}
        beyond = [e for e in self.outside if (e.thread in waited or e.waits_for) and not e.computes]
        found = [e for e in (*self.threads, *beyond) if e.thread in self.stayed and not e.held_by]
        alike = Counter(map(str, (each.model for each in found)))
        return sorted(
            found, key=lambda e: (e.launch is None, e.thread not in waited, e.is_worker, -alike[str(e.model)])
        )


async def look_at_process(context: Context, attached: Attached) -> ProcessSeen:
    """Look several times at the process. Raise `ProblemError` if it cannot be read, or has no package."""
    pid = attached.pid
    path = attached.package
    if path is None:
        path = await anyio.to_thread.run_sync(_loaded_by, pid)
    view = await anyio.to_thread.run_sync(view_package, path)
    library = await anyio.to_thread.run_sync(library_in, view.package, context.directory)
    context.progress("looking at the process")
    looks = []
    for number in range(LOOKS):
        await anyio.sleep(BETWEEN_S / (LOOKS - 1) if number else 0)
        looks.append(await anyio.to_thread.run_sync(_look, pid, view, library))
    first, last = looks[0], looks[-1]
    stayed = {each.thread for each in last.everyone} - _moved(first.recording, last.recording)
    for look in looks[:-1]:
        there = {each.thread: _where(each) for each in look.everyone}
        stayed &= {each.thread for each in last.everyone if there.get(each.thread) == _where(each)}
    return ProcessSeen(
        **{**vars(last), "threads": [_in_a_launch(each, looks) for each in last.threads]},
        pid=pid,
        view=view,
        stayed=frozenset(stayed),
        flights=_flights(last.recording),
        served=_served(first.recording, last.recording),
    )


MOST_PROCESSES = 8


async def look_for_stuck(context: Context, pid: int, packages: Sequence[Path]) -> ProcessSeen | None:
    """The process, or one that it started, that is stuck; best one in a package."""
    found: list[ProcessSeen] = []
    among: list[Path | None] = [*packages] or [None]
    for each in [pid, *descendants(root=pid)][:MOST_PROCESSES]:
        for package in among:
            with suppress(ProblemError):  # it has not loaded this package
                found.append(await look_at_process(context, Attached(pid=each, package=package)))
    stuck = [each for each in found if each.deadlocked or each.blocking]
    return max(stuck, key=lambda each: len(each.threads), default=None)


def _in_a_launch(thread: ThreadSeen, looks: Sequence[Look]) -> ThreadSeen:
    """Return the thread. If it now computes between launches, return it as last seen inside a launch."""
    if not thread.computes or thread.launch is not None:
        return thread
    views = [
        each for look in looks for each in look.threads if each.thread == thread.thread and each.computes
    ]
    return next((each for each in reversed(views) if each.launch is not None), thread)


def _where(thread: ThreadSeen) -> tuple[object, ...]:
    """What stays the same while a thread does not move. A computing thread may change launches."""
    if thread.waits_for:  # a thread that waits for the GIL wakes up again and again
        return thread.launch, thread.waits_for, *thread.held_by
    return ("computes",) if thread.computes else (thread.launch, *thread.frames)


def _look(pid: int, view: PackageView, library: Path) -> Look:
    with open_process(pid) as remains:
        reader = Reader(view, library, remains)
        remarks = reader.check()
        if remains.unknown:
            listed = ", ".join(map(str, remains.unknown[:8]))
            remarks.append(f"Where these threads compute could not be read: {listed}. `gcore {pid}` has it.")
        looked_at = remains.threads[:MOST_LOOKED_AT]
        inside = reader.threads(looked_at)
        ring = next((Path(each.path) for each in remains.maps if each.path.endswith(RING)), None)
        others = len(remains.threads) + len(remains.unknown) - len(inside)
        inputs = dict(_inputs(view, remains, inside))
    return Look(
        threads=inside,
        others=others,
        pool=reader.pool,
        ring=ring,
        recording=_recording(ring),
        remarks=remarks,
        outside=reader.outside,
        inputs=inputs,
    )


def _inputs(view: PackageView, remains: Remains, inside: Sequence[ThreadSeen]) -> Iterator[tuple[int, str]]:
    memory, states = MemoryReader(Path(), remains), {each.number: each for each in remains.threads}
    for each in [each for each in inside if each.launch is not None][:MOST_CALLS]:
        if found := memory.inputs_of(states[each.thread], view.package.inputs):
            yield each.thread, ", ".join(given.form for given in found[:MOST_CALLS])


def _recording(ring: Path | None) -> Recording | None:
    try:
        return read_recording(ring) if ring is not None else None
    except ProblemError:
        return None


def _loaded_by(pid: int) -> Path:
    """The library of the one package that the process has loaded, where it was unpacked."""
    with open_process(pid) as remains:
        paths = (each.path.removesuffix(" (deleted)").removesuffix(ORIGINAL) for each in remains.maps)
        found = list(dict.fromkeys(Path(path) for path in paths if path.endswith(LIBRARY)))
    there = [each for each in found if each.is_file()]
    if len(there) == 1:
        return there[0]
    what = "the process has loaded several packages" if there else "the process has unpacked no package"
    raise ProblemError(
        what,
        value=", ".join(each.name for each in found[:4]) or str(pid),
        allowed="the package that it has loaded, as a .pt2",
        next_call=f"aoti-debug diagnose model.pt2 --pid {pid}",
    )


def _flights(recording: Recording | None) -> dict[int, Flight]:
    if recording is None:
        return {}
    now = max(time.time_ns(), max((call.begin_ns for call in recording.calls), default=0))
    ended = [(c.end_ns - c.begin_ns) / 1e9 for c in recording.calls if c.end_ns is not None and not c.code]
    usual = statistics.median(ended) if ended else None
    return {c.thread: Flight((now - c.begin_ns) / 1e9, usual) for c in recording.calls if c.end_ns is None}


def _served(first: Recording | None, second: Recording | None) -> int | None:
    """The number of calls that ended between two looks at the ring."""
    if first is None or second is None:
        return None
    return sum(_last(second).values()) - sum(_last(first).values())


def _last(recording: Recording) -> dict[int, int]:
    """The number of ended calls in each slot, taken from its newest ended call."""
    ended = sorted((call.sequence, call.slot) for call in recording.calls if call.end_ns is not None)
    return {slot: sequence for sequence, slot in ended}


def _moved(first: Recording | None, second: Recording | None) -> frozenset[int]:
    """The threads whose open call at the first look has ended since."""
    if first is None or second is None:
        return frozenset()
    open_now = {(c.thread, c.slot, c.sequence) for c in second.calls if c.end_ns is None}
    return frozenset(
        c.thread for c in first.calls if c.end_ns is None and (c.thread, c.slot, c.sequence) not in open_now
    )
