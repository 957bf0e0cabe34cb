"""Finds the launch and line of a package in which a thread of a process is, and what it waits for."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path, PurePosixPath

from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import ModelLocation, Record
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView
from mcp_server.plurals import counted, listed
from mcp_server.recorder.package import LoadedLibrary, build_id_of
from mcp_server.recorder.remains import (
    CONDITION,
    FUTURE,
    LIBC,
    NAMED,
    OPENMP,
    Awaited,
    CrashSite,
    Frame,
    Remains,
    SourceLine,
    ThreadState,
    awaited,
    crash_site,
    function_at,
    holder,
    host_lines,
    in_team,
    is_worker,
    library_of,
    line_at,
    runs_python,
)

MOST_FRAMES = 12
GENERATED = (".kernel.cpp", ".wrapper.cpp")
LONGEST_CODE = 160  # characters of a code line that are shown
LONGEST_CALL = 8  # lines of a launch in wrapper.cpp, at most
STATES = {
    "run_const_fold": "folds constants, before its first call",
    "update_constant_buffer": "updates weights",
    "swap_constant_buffer": "swaps weights",
    "load_constants": "loads weights",
}
"""What a thread does outside a launch, by a part of a function's name (model_container.h, 2.8-2.15)."""


class ThreadSeen(Record):
    """A thread. `frames` are innermost first. `held_by` are the threads that hold what it waits for.

    `is_worker`: it makes no call itself, but is an OpenMP worker in a kernel of another thread's call.
    """

    thread: int
    state: str
    launch: int | None = None
    kernel: str = ""
    generated: str = ""
    model: list[ModelLocation] = Field(default_factory=list)
    frames: list[str] = Field(default_factory=list)
    waits_for: str = ""
    held_by: list[int] = Field(default_factory=list)
    computes: bool = False
    is_worker: bool = False


@dataclass
class _Stack:
    """A thread and its active calls, innermost first. `inside`: whether one of them is in the package."""

    state: ThreadState
    addresses: list[int]
    calls: list[Frame]
    launch: Launch | None
    line: SourceLine | None
    waits: tuple[Awaited, str] | None
    inside: bool = True
    holders: list[int] = field(default_factory=list)

    @property
    def is_worker(self) -> bool:
        return self.inside and is_worker([call.library for call in self.calls])

    @property
    def holds_gil(self) -> bool:
        """Whether the thread is in a call from Python, which keeps the GIL (pybind of the loader, 2.8-2.15).

        Python code inside the call, such as an operator, may have released the GIL.
        """
        if not self.inside:  # Python releases the GIL when it waits
            own = [call for call in self.calls if not LIBC.match(call.library)]
            return runs_python(self.calls) and (self.state.computes or not runs_python(own[:1]))
        within = next((n for n, call in enumerate(self.calls) if ".wrapper.so" in call.library), 0)
        inner, outer = self.calls[:within], self.calls[within:]
        return runs_python(outer) and not runs_python(inner)


@dataclass
class Reader:
    """Translates addresses of a process into launches and lines of the package."""

    view: PackageView
    library: Path
    remains: Remains
    pool: int = 0  # threads outside of the package that wait for OpenMP work
    outside: list[ThreadSeen] = field(default_factory=list)

    def check(self) -> list[str]:
        """Return what is unknown about the build. Raise `ProblemError` if the package was not loaded."""
        self._library.check_loaded()
        wanted = build_id_of(self.view.package)
        found = self._library.build_ids
        if wanted and found and wanted not in found:
            raise ProblemError(
                "the process had another build of this package",
                value=f"build {wanted}",
                allowed=f"the package with build {', '.join(found[:8])}",
                next_call="post-mortem with the package as it was loaded",
            )
        return [] if wanted and found else ["It is not known whether this is the same build of the package."]

    def threads(self, states: Sequence[ThreadState]) -> list[ThreadSeen]:
        """Describe the threads that are in the package. `outside` gets the threads that they wait for.

        If no thread is in the package, `outside` gets those that wait for a lock, and its holders. If none
        waits for a lock, it gets those that wait in code of the host.
        """
        every = [self._stack(state) for state in states]
        for stack in every:
            stack.holders = self._holders(stack, every)
        found = [stack for stack in every if stack.inside]
        roots = found or [stack for stack in every if stack.waits and stack.waits[0] in LOCKS]
        roots = roots or [stack for stack in every if not stack.state.computes and self._host(stack)]
        wanted = _reached(roots, {each.state.number: each for each in every})
        self.outside = [self._seen(each) for each in every if each.state.number in wanted and not each.inside]
        return [self._seen(stack) for stack in found]

    def site_of(self, thread: ThreadState) -> CrashSite:
        """Where and how a thread died."""
        stack, seen = self._library.unwinder.addresses(thread), self.remains
        return crash_site(thread.signal, thread.number, seen.address, thread.sp, stack, seen.maps, seen.said)

    @cached_property
    def _library(self) -> LoadedLibrary:
        return LoadedLibrary(self.library, self.remains)

    def _stack(self, thread: ThreadState) -> _Stack:
        addresses = self._library.unwinder.addresses(thread)
        calls = [self._call(address, number) for number, address in enumerate(addresses)]
        own = [call for call in calls if call.place is not None]
        waits = awaited(calls, thread)
        waits = waits if waits not in (CONDITION, FUTURE) or self._asleep else None
        if not own:
            self.pool += any(OPENMP.match(call.library) for call in calls)
            return _Stack(thread, addresses, calls, None, None, waits, inside=False)
        lines = [line_at(self.library, call.place or 0, GENERATED) for call in own]
        launch = self._launch([call.function for call in own], lines)
        first = next((line for line in lines if line is not None), None)
        return _Stack(thread, addresses, calls, launch, first, waits)

    @cached_property
    def _asleep(self) -> bool:
        """Whether every thread waits for another one, without a time limit: none is left to notify."""
        return not self.remains.unknown and all(each.forever for each in self.remains.threads)

    def _call(self, address: int, number: int) -> Frame:
        """Library and function of an active call. The function is empty for most foreign libraries."""
        found = self.remains.mapping(address)
        if found is None:
            return Frame(f"{address:#x}", "")
        # A return address is after the call. The first address is the thread's current instruction.
        name, offset = library_of(found.path), address - found.start + found.offset - (number > 0)
        if self._library.is_at(found.path):
            return Frame(name, function_at(self.library, offset), offset)
        return Frame(name, function_at(Path(found.path), offset) if NAMED.match(name) else "")

    def _holders(self, stack: _Stack, found: Sequence[_Stack]) -> list[int]:
        """The threads that hold what this one waits for. Empty if unknown."""
        if stack.waits is None:
            return []
        kind, others = stack.waits[0], [each for each in found if each is not stack]
        owner = holder(kind, stack.state, self.remains)
        if owner is not None:
            return [owner]
        if kind == "gil":
            inside = [each for each in others if each.holds_gil and (not each.waits or each.waits[0] != kind)]
            return [each.state.number for each in inside] if len(inside) == 1 else []
        if kind == "openmp":
            return [each.state.number for each in self._team(stack, others)]
        if kind in ("instance", "weights"):
            # A nested call of the package may wait for the instance that its own thread occupies.
            callers = found if kind == "instance" else others
            return [e.state.number for e in callers if e.launch is not None and not e.is_worker]
        return []

    def _team(self, stack: _Stack, others: Sequence[_Stack]) -> list[_Stack]:
        """The threads of the waiting thread's OpenMP team that have not reached its barrier."""
        barrier = stack.state.lock
        late = [each for each in others if not barrier or each.state.lock != barrier]
        return [each for each in late if barrier and in_team(each.state, barrier, self.remains)]

    def _seen(self, stack: _Stack) -> ThreadSeen:
        launch, line = stack.launch, stack.line
        return ThreadSeen(
            thread=stack.state.number,
            state=self._state(stack),
            launch=launch.index if launch is not None else None,
            kernel=launch.kernel if launch is not None else "",
            generated=f"{_short(line)}  {self._code(line)}".rstrip() if line is not None else "",
            model=self.view.locations(launch.index)[:4] if launch is not None else self._host(stack),
            frames=_joined(map(self._frame, stack.calls)),
            waits_for=stack.waits[1] if stack.waits is not None else "",
            held_by=stack.holders,
            computes=stack.state.computes,
            is_worker=stack.is_worker,
        )

    def _launch(self, names: Sequence[str], lines: Sequence[SourceLine | None]) -> Launch | None:
        """The launch that `run_impl` executes, else that of a kernel that is launched only once."""
        launches = self.view.wrapper.launches
        for name, line in zip(names, lines, strict=True):
            if "8run_impl" in name and line is not None and line.file.endswith(".wrapper.cpp"):
                before = [each for each in launches if 0 <= line.line - each.line < LONGEST_CALL]
                return before[-1] if before else None
        for name in names:
            found = self.view.wrapper.launches_of.get(name.partition(".")[0], [])
            if len(found) == 1:
                return launches[found[0]]
        return None

    def _state(self, stack: _Stack) -> str:
        """Say where the thread is, and what it waits for."""
        where = f"in launch {stack.launch.index}, {stack.launch.kernel}" if stack.launch is not None else ""
        where += ", as an OpenMP worker" if where and stack.is_worker else ""
        does = stack.state.waits
        if stack.waits is not None:
            held = listed([f"thread {number}" for number in stack.holders[:4]], "and")
            does = f"waits for {stack.waits[1]}" + (f", held by {held}" if held else "")
        elif not where:
            known = (t for call in stack.calls for part, t in STATES.items() if part in call.function)
            does = next(known, does)
        if stack.state.computes and stack.waits is None:
            does = "computes"
        if not stack.inside:
            return f"{OUTSIDE}: {does}" if does else OUTSIDE
        return ": ".join(filter(None, (where, does))) or "in the package, outside a launch"

    def _host(self, stack: _Stack) -> list[ModelLocation]:
        """The line of the host's code where a thread outside the package is."""
        lines = host_lines(stack.addresses, self.remains.maps) if not stack.inside else iter(())
        return [ModelLocation(file=each.file, line=each.line) for each in islice(lines, 1)]

    def _frame(self, call: Frame) -> str:
        if call.place is None:
            return call.library
        line = line_at(self.library, call.place, GENERATED)
        return f"{call.function or self.library.name}" + (f" at {_short(line)}" if line else "")

    def _code(self, line: SourceLine) -> str:
        """The text of a source line in the package. Empty if absent."""
        name = PurePosixPath(line.file).name
        member = next(
            (each for each in self.view.package.files.members if each.name.endswith(f"/{name}")), None
        )
        lines = self.view.package.text(member.name).splitlines() if member is not None else []
        return lines[line.line - 1].strip()[:LONGEST_CODE] if 0 < line.line <= len(lines) else ""


_VERB = re.compile(r"(?<=wait|read|swap|load|fold)s\b|(?<=sleep)s\b|(?<=update)s\b|(?<=compute)s\b")


def states_in_words(threads: Iterable[ThreadSeen]) -> Iterator[str]:
    """Yield each state with the number of threads in it."""
    for state, count in Counter(each.state for each in threads).items():
        yield f"{counted(count, 'thread')} {state if count == 1 else _VERB.sub('', state)}"


OUTSIDE = "outside of the package"
LOCKS = ("gil", "mutex", "rwlock")


def _reached(roots: Sequence[_Stack], known: Mapping[int, _Stack]) -> set[int]:
    """The numbers of `roots` and of the threads that they wait for, directly or indirectly."""
    found: set[int] = set()
    new = {each.state.number for each in roots}
    while new:
        found |= new
        new = {holder for each in new if each in known for holder in known[each].holders} - found
    return found


def _joined(frames: Iterable[str]) -> list[str]:
    """Combine consecutive frames of the same library, of which Python has dozens."""
    runs = [(frame, len(list(run))) for frame, run in groupby(frames)]
    return [f"{frame} ({count} frames)" if count > 1 else frame for frame, count in runs][:MOST_FRAMES]


def _short(line: SourceLine) -> str:
    """Shorten a location to `wrapper.cpp:966`: names of generated files are hashes."""
    name = PurePosixPath(line.file).name
    return f"{name.partition('.')[2] or name}:{line.line}"
