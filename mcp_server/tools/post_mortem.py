"""`post-mortem`: where the threads of a dead or hung process are in a package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path, PurePosixPath

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import ModelLocation, Record
from mcp_server.package.archive import Package
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView, view_package
from mcp_server.plurals import counted
from mcp_server.recorder.core_file import open_core
from mcp_server.recorder.package import ORIGINAL, build_id_at, build_id_of
from mcp_server.recorder.remains import (
    Remains,
    SourceLine,
    ThreadState,
    function_at,
    line_at,
    open_process,
    signal_name,
)
from mcp_server.recorder.unwind import Unwinder
from mcp_server.runtime.context import Context

MOST_THREADS = 32
MOST_LOOKED_AT = 256
MOST_FRAMES = 12
SOURCES = (".kernel.cpp", ".wrapper.cpp")
LONGEST_CODE = 160  # characters shown of a line
LONGEST_CALL = 8  # most lines of a launch in wrapper.cpp
STATES = {
    "reclaim_finished_models": "waits for a free instance of the model: all are in calls",
    "get_available_model": "waits for a free instance of the model: all are in calls",
    "run_const_fold": "folds constants, before its first call",
    "update_constant_buffer": "updates weights",
    "swap_constant_buffer": "swaps weights",
    "load_constants": "loads weights",
}
"""What a thread does outside a launch, by a part of a function's name (model_container.h, 2.8-2.15)."""


class ThreadSeen(Record):
    """A thread in the package; `frames` are innermost first."""

    thread: int
    state: str
    launch: int | None = None
    kernel: str = ""
    generated: str = ""
    model: list[ModelLocation] = Field(default_factory=list)
    frames: list[str] = Field(default_factory=list)


class PostMortem(Record):
    """What the threads were doing. `threads` are those in the package, the one with the signal first."""

    summary: str
    signal: str = ""
    threads: list[ThreadSeen] = Field(default_factory=list)
    others: int = 0
    remarks: list[str] = Field(default_factory=list)


async def post_mortem(context: Context, package: Path, core: Path | None, pid: int | None) -> PostMortem:
    """Examine a core file, or a process that continues to run. Raise `ProblemError` if that is impossible."""
    view = await anyio.to_thread.run_sync(view_package, package)
    library = await anyio.to_thread.run_sync(_library, view.package, context.directory)

    def read() -> PostMortem:
        with open_core(core) if core is not None else open_process(pid or 0) as remains:
            return _Reader(view, library, remains).read()

    return await anyio.to_thread.run_sync(read)


def _library(package: Package, folder: Path) -> Path:
    """Extract the package's own library to a file. Raise `ProblemError` if it has none."""
    member = package.files.library
    if member is None:
        raise ProblemError("the package has no library (.so)", value=str(package.path))
    original = package.files.named(member.name + ORIGINAL) or member
    target = folder / PurePosixPath(member.name).name
    with package.container.open(original.name) as stream, target.open("wb") as file:
        while part := stream.read(1 << 20):
            file.write(part)
    return target


@dataclass(frozen=True)
class _Reader:
    """Translates addresses of a process into terms of the package."""

    view: PackageView
    library: Path
    remains: Remains

    def read(self) -> PostMortem:
        if not self._starts:
            raise ProblemError(
                "the process had not loaded this package",
                value=self.library.name,
                allowed=_listed(self._loaded) or "a process with a package loaded",
                next_call="post-mortem with the package that the process has loaded",
            )
        remarks = self._builds()
        if self.remains.is_cut:
            remarks.append("The core file is truncated: nothing is known of threads whose stack is missing.")
        looked_at = self.remains.threads[:MOST_LOOKED_AT]
        seen = [self._seen(thread) for thread in looked_at]
        inside = [each for each in seen if each is not None]
        others = len(looked_at) + len(self.remains.running) - len(inside)
        beyond = len(self.remains.threads) - len(looked_at)
        if beyond:
            remarks.append(
                f"{counted(beyond, 'thread')} of {len(self.remains.threads)} were not looked at: the limit "
                f"is {MOST_LOOKED_AT}. Where they are is not known."
            )
        if self.remains.running:
            listed = ", ".join(map(str, self.remains.running[:8]))
            remarks.append(
                f"Where computing threads are is not known: {listed}. A core file shows it: gcore PID."
            )
        ended = signal_name(self.remains.threads[0].signal) if self.remains.threads else ""
        return PostMortem(
            summary=self._summary(ended, inside, others),
            signal=ended,
            threads=inside[:MOST_THREADS],
            others=others,
            remarks=remarks,
        )

    @cached_property
    def _loaded(self) -> set[str]:
        return {PurePosixPath(each.path).name for each in self.remains.maps if ".wrapper.so" in each.path}

    @cached_property
    def _starts(self) -> list[int]:
        """Return where the package's library begins in memory, once for each loader."""
        return [m.start for m in self.remains.maps if m.offset == 0 and self._is_library(m.path)]

    def _is_library(self, path: str) -> bool:
        name = PurePosixPath(path.removesuffix(" (deleted)")).name
        return name.removesuffix(ORIGINAL) == self.library.name

    def _builds(self) -> list[str]:
        """Compare builds. Raise `ProblemError` if the process had another build of the library."""
        wanted = build_id_of(self.view.package)
        found = {build_id_at(self.remains.read(start, 4096)) for start in self._starts} - {""}
        if wanted and found and wanted not in found:
            raise ProblemError(
                "the process had another build of this package",
                value=f"build {wanted}",
                allowed=f"the package with build {_listed(found)}",
                next_call="post-mortem with the package as it was loaded",
            )
        return [] if wanted and found else ["It is not known whether this is the same build of the package."]

    def _place(self, address: int) -> int | None:
        """Return the offset of an address in the library's file; None if it is outside."""
        found = self.remains.mapping(address)
        if found is None or not self._is_library(found.path):
            return None
        return address - found.start + found.offset

    @cached_property
    def _unwinder(self) -> Unwinder:
        return Unwinder(self.remains, lambda path: self.library if self._is_library(path) else Path(path))

    def _seen(self, thread: ThreadState) -> ThreadSeen | None:
        frames = self._unwinder.addresses(thread)
        places = [self._place(frame) for frame in frames]
        if all(place is None for place in places):
            return None
        # A return address is after the call; the first address is where the thread itself is.
        known = [place - (number > 0) for number, place in enumerate(places) if place is not None]
        names = [function_at(self.library, place) for place in known]
        lines = [line_at(self.library, place, SOURCES) for place in known]
        launch = self._launch(names, lines)
        first = next((line for line in lines if line is not None), None)
        return ThreadSeen(
            thread=thread.number,
            state=self._state(thread, names, launch),
            launch=launch.index if launch is not None else None,
            kernel=launch.kernel if launch is not None else "",
            generated=f"{_short(first)}  {self._code(first)}".rstrip() if first is not None else "",
            model=self.view.locations(launch.index)[:4] if launch is not None else [],
            frames=_joined(self._frame(frame, number) for number, frame in enumerate(frames)),
        )

    def _launch(self, names: Sequence[str], lines: Sequence[SourceLine | None]) -> Launch | None:
        """Return the launch in which the wrapper's run was, else the only launch of a kernel in a frame."""
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

    def _state(self, thread: ThreadState, names: Sequence[str], launch: Launch | None) -> str:
        if launch is not None:
            return f"in launch {launch.index}, {launch.kernel}" + (
                f": {thread.waits}" if thread.waits else ""
            )
        known = (text for name in names for part, text in STATES.items() if part in name)
        return next(known, thread.waits or "in the package, outside a launch")

    def _frame(self, address: int, number: int) -> str:
        found = self.remains.mapping(address)
        if found is None:
            return f"{address:#x}"
        place = self._place(address)
        if place is None:
            return PurePosixPath(found.path).name
        place -= number > 0
        line = line_at(self.library, place, SOURCES)
        return f"{function_at(self.library, place) or self.library.name}" + (
            f" at {_short(line)}" if line else ""
        )

    def _code(self, line: SourceLine) -> str:
        """Return the text of a source line in the package; empty if absent."""
        name = PurePosixPath(line.file).name
        member = next(
            (each for each in self.view.package.files.members if each.name.endswith(f"/{name}")), None
        )
        lines = self.view.package.text(member.name).splitlines() if member is not None else []
        return lines[line.line - 1].strip()[:LONGEST_CODE] if 0 < line.line <= len(lines) else ""

    def _summary(self, ended: str, inside: Sequence[ThreadSeen], others: int) -> str:
        first = self.remains.threads[0].number if self.remains.threads else 0
        crashed = next((each for each in inside if each.thread == first), None) if ended else None
        if crashed is not None:
            told = f"{ended} in thread {first}, {crashed.state}"
            if crashed.model:
                line = crashed.model[0]
                told += f", from {PurePosixPath(line.file).name}:{line.line}  {line.code}".rstrip()
            beside = len(inside) - 1
            return f"{told}. {counted(beside, 'other thread')} in the package, {others} elsewhere."
        if ended and self.remains.is_cut:
            return f"{ended} in thread {first}. The core file is cut off, and its stack was not found."
        if ended:
            told = f"{ended} in thread {first}, outside the package. {counted(len(inside), 'thread')} in it"
            return f"{told}, {others} elsewhere."
        states: dict[str, int] = {}
        for each in inside:
            states[each.state] = states.get(each.state, 0) + 1
        told = "; ".join(f"{counted(count, 'thread')} {state}" for state, count in states.items())
        return f"{told or 'No thread is in the package'}. {counted(others, 'thread')} elsewhere."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name[:LONGEST_CODE] for name in sorted(names)[:8])


def _joined(frames: Iterable[str]) -> list[str]:
    """Combine consecutive frames of the same library, of which Python has dozens."""
    runs = [(frame, len(list(run))) for frame, run in groupby(frames)]
    return [f"{frame} ({count} frames)" if count > 1 else frame for frame, count in runs][:MOST_FRAMES]


def _short(line: SourceLine) -> str:
    """Shorten a location to `wrapper.cpp:966`: names of generated files are hashes."""
    name = PurePosixPath(line.file).name
    return f"{name.partition('.')[2] or name}:{line.line}"
