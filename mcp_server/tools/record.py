"""`record`: writes a package or a preloaded library that keeps the latest calls. `recordings`: lists them."""

import os
from datetime import datetime, timezone
from pathlib import Path

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import Artifact, Record
from mcp_server.package.archive import open_package
from mcp_server.plurals import counted
from mcp_server.recorder.package import RecorderOptions, build_library, with_recorder, without_recorder
from mcp_server.recorder.replay import KernelCapture, captures_in
from mcp_server.recorder.ring import RecordedCall, Recording, read_recording, recordings_in
from mcp_server.runtime.context import Context

MOST_LISTED = 20
MOST_CALLS = 10


def options_of(directory: Path | None, mode: str, ring_mb: int, budget_mb: int) -> RecorderOptions:
    """The options. The default folder is in memory, because recordings are rewritten constantly."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
    folder = directory or Path(root, f"aoti-debug-recordings-{os.getuid()}")
    return RecorderOptions(str(folder), mode, ring_mb, budget_mb)


def is_in_memory(folder: str, mounts: Path = Path("/proc/mounts")) -> bool:
    """Whether a folder is in memory: CUDA cannot pin the memory of a file on disk (H100, CUDA 13.0)."""
    path = os.path.realpath(folder)
    found = [line.split()[1:3] for line in mounts.read_text().splitlines()] if mounts.exists() else []
    holding = [(place, kind) for place, kind in found if f"{path}/".startswith(f"{place.rstrip('/')}/")]
    return max(holding, default=("", ""), key=lambda each: len(each[0]))[1] in ("tmpfs", "ramfs")


class Recorded(Record):
    """What was written, where a host keeps its calls, and the command that reads them."""

    summary: str
    package: Path | None = None
    library: Path | None = None
    models: list[str] = Field(default_factory=list)
    recordings: str = ""
    environment: dict[str, str] = Field(default_factory=dict)
    command: str = ""
    artifacts: list[Artifact] = Field(default_factory=list)


def new_package(asked: Path | None, package: Path, kind: str) -> Path:
    """The file to write, by default next to the package. Raises `ProblemError` if it exists."""
    target = asked or package.with_name(f"{package.stem}.{kind}.pt2")
    if target.exists() or target.is_symlink():
        raise ProblemError("the file is there already", value=str(target), allowed="a new file")
    return target


async def record(context: Context, package: Path, out: Path | None, options: RecorderOptions) -> Recorded:
    """Write the package with the recorder in it. Raise `ProblemError` if that fails."""
    target = new_package(out, package, "recorded")
    models = await with_recorder(package, target, options, context)
    told = f"Wrote {target}: load it in place of {package.name}. The host program does not change."
    device = await anyio.to_thread.run_sync(lambda: open_package(package).device_type)
    if device == "cuda" and not is_in_memory(options.directory):
        told += f" Values on the GPU are not kept in {options.directory}: give a folder in memory (/dev/shm)."
    return Recorded(
        summary=told,
        package=target,
        models=models,
        recordings=options.directory,
        command=f"aoti-debug diagnose --recording {options.directory} {package}",
    )


async def remove(package: Path, out: Path | None) -> Recorded:
    """Write the package without the recorder. Raise `ProblemError` if that fails."""
    target = new_package(out, package, "plain")
    models = await without_recorder(package, target)
    return Recorded(summary=f"Wrote {target} without the recorder.", package=target, models=models)


async def preload(context: Context, out: Path | None, options: RecorderOptions) -> Recorded:
    """Build a library that records whatever package its process loads."""
    library = await build_library("preload.c", {}, options, context)
    if out is not None:
        try:
            with out.open("xb") as file:
                file.write(library.read_bytes())
        except OSError as error:
            what = f"the library cannot be written: {error.strerror}"
            raise ProblemError(
                what, value=str(out), allowed="a new file, in a folder with room for it"
            ) from error
    return Recorded(
        summary="Start the host with this environment. It records each package that it loads.",
        library=out or library,
        recordings=options.directory,
        environment={"LD_PRELOAD": str(out or library)},
        command=f"aoti-debug diagnose --recording {options.directory} model.pt2",
    )


class CallRow(Record):
    """One call. `call` is its slot and sequence number in the ring."""

    call: str
    thread: int
    began: str
    state: str
    inputs: str
    values: str


class ProcessRow(Record):
    """One process and its calls. `calls` lists those that failed or were in flight, then the newest."""

    recording: Path
    process: int
    state: str
    models: list[str]
    kept: int
    missed: int
    calls: list[CallRow]


class Recordings(Record):
    """The recordings of a folder, the newest first."""

    summary: str
    processes: list[ProcessRow]
    captures: list[KernelCapture] = Field(default_factory=list)
    unreadable: list[str] = Field(default_factory=list)


async def recordings(folder: Path) -> Recordings:
    """List the recordings in `folder`, even while it is written to. Raise `ProblemError` if unreadable."""
    if captures := await anyio.to_thread.run_sync(captures_in, folder):
        kept, requests = counted(len(captures), "launch"), len({each.request for each in captures})
        return Recordings(
            summary=f"{kept} of {counted(requests, 'request')}, as torch's kernel capture keeps them. Next: "
            f"aoti-debug diagnose model.pt2 --recording {folder}",
            processes=[],
            captures=captures[:MOST_LISTED],
        )
    rows, problems = [], []
    for path in recordings_in(folder)[:MOST_LISTED]:
        try:
            rows.append(_process(await anyio.to_thread.run_sync(read_recording, path)))
        except ProblemError as problem:
            problems.append(problem)
    if not rows:
        raise problems[0]
    troubled = sum("in flight" in call.state or "failed" in call.state for row in rows for call in row.calls)
    return Recordings(
        summary=f"{counted(troubled, 'call')} failed or in flight, in {counted(len(rows), 'recording')}.",
        processes=rows,
        unreadable=[str(problem) for problem in problems],
    )


def _process(found: Recording) -> ProcessRow:
    first = sorted(found.calls, key=lambda call: (call.code == 0, -call.begin_ns))[:MOST_CALLS]
    state = "runs" if found.alive else "ended" if found.ended else "died"
    if found.crash is not None:
        state = f"died of signal {found.crash.signal} in thread {found.crash.thread}"
    state = f"{state}; {found.loss}" if found.loss else state
    return ProcessRow(
        recording=found.path,
        process=found.pid,
        state=state,
        models=[model.path for model in found.models],
        kept=len(found.calls),
        missed=found.missed,
        calls=[_row(call) for call in first],
    )


def _row(call: RecordedCall) -> CallRow:
    began = datetime.fromtimestamp(call.begin_ns / 1e9, timezone.utc)
    took = f"{((call.end_ns or 0) - call.begin_ns) / 1e6:.3f} ms"
    ended = f"failed with code {call.code} after {took}" if call.code else took
    kept = sum(1 for each in call.inputs if each.bytes is not None or not each.span)
    return CallRow(
        call=f"{call.slot}:{call.sequence}",
        thread=call.thread,
        began=began.isoformat(timespec="milliseconds"),
        state="in flight" if call.end_ns is None else ended,
        inputs=", ".join(each.form for each in call.inputs[:8]),
        values=f"{kept} of {call.total_inputs} kept",
    )
