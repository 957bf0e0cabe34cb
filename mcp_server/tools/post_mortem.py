"""`post-mortem`: reads from a core file where the threads of a process were in a package.

Several core files in a folder are grouped by what they have in common.
"""

from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import Record
from mcp_server.package.view import PackageView, view_package
from mcp_server.plurals import capitalized, counted, is_
from mcp_server.recorder.core_file import MemoryReader, is_core, open_core
from mcp_server.recorder.package import library_in
from mcp_server.recorder.remains import MOST_LOOKED_AT, NEXT, Remains, signal_name
from mcp_server.runtime.context import Context
from mcp_server.tools.in_package import Reader, ThreadSeen, states_in_words

MOST_CORES = 200
MOST_LISTED = 20
MOST_THREADS = 32


class PostMortem(Record):
    """What the threads were doing. `threads` are those in the package, one for each stack that differs.

    If the thread with the signal is in the package (`crashed_inside`), `threads` has only this one; `beside`
    counts the others. `inputs` are those of the first thread's call; empty if some values are not in memory.
    """

    summary: str
    signal: str = ""
    threads: list[ThreadSeen] = Field(default_factory=list)
    beside: list[str] = Field(default_factory=list)
    crashed_inside: bool = False
    others: int = 0
    inputs: list[str] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)


class CoreGroup(Record):
    """Core files with the same signal, kernel and line. `first` is what the newest of them shows."""

    signature: str
    count: int
    cores: list[Path]
    first: PostMortem


class Cores(Record):
    """The core files of a folder, the largest group first."""

    summary: str
    groups: list[CoreGroup]
    unreadable: list[str] = Field(default_factory=list)


async def post_mortem_of_folder(context: Context, package: Path, folder: Path) -> Cores:
    """Examine the newest core files of a folder. Raise `ProblemError` if it has none that can be read."""
    paths = [path for path in folder.iterdir() if is_core(path)]
    if not paths:
        allowed = "a core file, or a folder of them"
        raise ProblemError(
            "no core file is in the folder", value=str(folder), allowed=allowed, next_call=NEXT
        )
    view = await anyio.to_thread.run_sync(view_package, package)
    library = await anyio.to_thread.run_sync(library_in, view.package, context.directory)
    groups: dict[str, list[tuple[Path, PostMortem]]] = {}
    unreadable = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_CORES]:
        context.progress(f"reading {path.name}")
        try:
            found = await anyio.to_thread.run_sync(read_core, view, library, path, groups)
        except ProblemError as problem:
            unreadable.append(str(problem))
        else:
            groups.setdefault(_signature(found), []).append((path, found))
    if not groups:
        raise ProblemError("no core file of the folder can be read", value="; ".join(unreadable)[:400])
    rows = [
        CoreGroup(signature=key, count=len(some), cores=[p for p, _ in some][:MOST_LISTED], first=some[0][1])
        for key, some in sorted(groups.items(), key=lambda each: -len(each[1]))
    ]
    told = f"{counted(len(paths), 'core file')} in {counted(len(rows), 'group')}"
    left = f"; {len(paths) - MOST_CORES} older ones were not read" if len(paths) > MOST_CORES else ""
    summary = f"{told}{left}. The largest has {rows[0].count}: {rows[0].signature}."
    return Cores(summary=summary, groups=rows, unreadable=unreadable[:MOST_LISTED])


def _signature(found: PostMortem) -> str:
    """What core files of one fault have in common: signal, kernel and line."""
    first = found.threads[0] if found.threads and found.crashed_inside else None
    ended = found.signal or "no signal"
    return f"{ended} in {first.kernel or 'the package'}, {first.generated}" if first else f"{ended} elsewhere"


async def post_mortem(context: Context, package: Path, core: Path) -> PostMortem:
    """Examine a core file. Raise `ProblemError` if that is impossible."""
    view = await anyio.to_thread.run_sync(view_package, package)
    library = await anyio.to_thread.run_sync(library_in, view.package, context.directory)
    return await anyio.to_thread.run_sync(read_core, view, library, core)


def read_core(
    view: PackageView, library: Path, core: Path, known: Collection[str] = frozenset()
) -> PostMortem:
    """Say what the threads of a core file were doing. Raise `ProblemError` if it is of another package.

    Inputs are searched only if its signature is not `known`, since this reads all stacks and much memory.
    """
    with open_core(core) as remains:
        reader = Reader(view, library, remains)
        remarks = reader.check()
        if remains.is_cut:
            remarks.append("The core file is truncated: nothing is known of threads whose stack is missing.")
        looked_at = remains.threads[:MOST_LOOKED_AT]
        inside = reader.threads(looked_at)
        beyond = len(remains.threads) - len(looked_at)
        if beyond:
            remarks.append(
                f"{counted(beyond, 'thread')} of {len(remains.threads)} were not examined: the limit "
                f"is {MOST_LOOKED_AT}. It is not known where they were."
            )
        ended = signal_name(remains.threads[0].signal) if remains.threads else ""
        others = len(looked_at) - len(inside)
        crashed = bool(ended and inside) and inside[0].thread == remains.threads[0].number
        unlike = {(each.state, *each.frames): each for each in reversed(inside)}
        found = PostMortem(
            summary=_summary(remains, ended, inside, others, reader),
            signal=ended,
            threads=inside[:1] if crashed else [*reversed(unlike.values())][:MOST_THREADS],
            beside=[*states_in_words(inside[1:])] if crashed else [],
            crashed_inside=crashed,
            others=others,
            remarks=remarks,
        )
        if _signature(found) in known or not (inputs := _inputs(core, view, remains, inside)):
            return found
        if not inside:
            remarks.append("If an exception of a call ended it, the frames of the package are gone.")
        remarks.append(
            "The inputs of the call are in the core file. To make the call again: aoti-debug diagnose "
            f"{view.package.path} --recording {core}"
        )
        return found.model_copy(update={"inputs": inputs, "remarks": remarks})


def _inputs(core: Path, view: PackageView, remains: Remains, inside: Sequence[ThreadSeen]) -> list[str]:
    """The inputs of the first thread's call as text. Empty if not all of their values are there."""
    # A worker thread works for another thread's call.
    calls = [each for each in inside if not each.is_worker and each.launch == inside[0].launch]
    numbers = [each.thread for each in (calls or inside)[:1]] or [each.number for each in remains.threads[:1]]
    state = next((each for each in remains.threads if each.number in numbers), None)
    reader = MemoryReader(core, remains)
    if state is None or not (inside or reader.ended_with_inputs(state, view.package.inputs)):
        return []
    found = reader.inputs_of(state, view.package.inputs)
    whole = all(each.bytes is not None or not each.span for each in found)
    return [each.form for each in found] if whole else []


def _summary(remains: Remains, ended: str, inside: Sequence[ThreadSeen], others: int, reader: Reader) -> str:
    first = remains.threads[0].number if remains.threads else 0
    crashed = next((each for each in inside if each.thread == first), None) if ended else None
    if crashed is not None:
        told = f"{ended} in thread {first}, {crashed.state}"
        if crashed.model:
            line = crashed.model[0]
            told += f", from {PurePosixPath(line.file).name}:{line.line}  {line.code}".rstrip()
        beside = sum(not each.is_worker for each in inside if each is not crashed)
        return f"{told}. {counted(beside, 'other thread')} in the package, {others} elsewhere."
    if ended and remains.is_cut:
        return f"{ended} in thread {first}. The core file is cut off, and its stack was not found."
    if ended:
        site = reader.site_of(remains.threads[0])
        served = next((each for each in inside if first in each.held_by), None)
        what = f"computes for thread {served.thread}, {served.state}" if served else "outside the package"
        what = f"at {site.place}, {what}" if site.place else what
        told = f"{capitalized(site.words)}; {what}. {counted(len(inside), 'thread')}"
        return f"{told} in the package, {others} elsewhere."
    told = "; ".join(states_in_words(inside))
    return f"{told or 'No thread is in the package'}. {counted(others, 'thread')} {is_(others)} elsewhere."
