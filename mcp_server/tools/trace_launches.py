"""`trace_launches`: every launch of a run with its arguments, and the one at which the run ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import Field

from mcp_server.jobs.types import Finished
from mcp_server.logs.journal import Journal, JournalArgument, JournalLaunch, read_journal_file
from mcp_server.model import Artifact, ModelLocation, PackageWorkload, Record
from mcp_server.package.archive import Package, open_package
from mcp_server.package.provenance import read_provenance
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.probes.rewrite import numbered
from mcp_server.tools.context import Context, gpus_of
from mcp_server.tools.failure import Failure, read_failure
from mcp_server.tools.requests import run_request

ROWS = 60
ARGUMENTS = 12

How = Literal["returned", "fault", "threw", "died", "between", "not_started", "not_run"]


class LaunchRow(Record):
    """One launch of the trace. `seconds` is host time: on CUDA it is the kernel's only in synchronous mode.

    `arguments` are one line each; `line` is that of wrapper.cpp.
    """

    launch: int
    sequence: int
    call: int
    kernel: str
    line: int | None
    state: Literal["done", "open", "fault"]
    seconds: float | None
    arguments: list[str]
    model: list[ModelLocation] = Field(default_factory=list)


class SkippedLaunch(Record):
    """A launch that the journal does not show."""

    model: str
    launch: int | None
    kernel: str
    reason: str


class Trace(Record):
    """The result. `launches` are the last ones, `total` counts all; `trace` holds them all as JSON.

    `package` is the instrumented package: a C++ host loads it with `environment` set and needs no Python.
    """

    how: How
    summary: str
    last: LaunchRow | None = None
    launches: list[LaunchRow] = Field(default_factory=list)
    total: int = 0
    calls: int = 0
    synchronous: bool
    failure: Failure | None = None
    package: Path
    environment: dict[str, str]
    skipped: list[SkippedLaunch] = Field(default_factory=list)
    cut_lines: int = 0
    rebuild_s: float
    cached: bool
    artifacts: list[Artifact] = Field(default_factory=list)


async def trace_launches(
    context: Context,
    workload: PackageWorkload,
    *,
    sync: bool = True,
    stop_at: int | None = None,
    calls: int = 1,
    cache: Cache | None = None,
) -> Trace:
    """Instrument the package, run it `calls` times, and read the journal of its launches.

    Without inputs nothing runs: the instrumented package and its environment are handed back, for a host of
    the user's own. `sync` waits for the device after each launch, so that a fault stops at the launch that
    caused it; `stop_at` ends the run before that launch. Raises `ProblemError` when the package cannot be
    rebuilt.
    """
    python = context.python_for(workload)
    rebuilt = await instrument(
        workload.package, Options(), context, python=python, cache=cache, env=workload.env
    )
    journal = context.directory / "launches.jsonl"
    environment = journal_environment(journal, sync, stop_at)
    if workload.inputs is None:
        return _prepared(rebuilt, environment, sync)
    package = await anyio.to_thread.run_sync(open_package, workload.package, workload.model_name)
    done = await context.worker(
        "run",
        {**run_request(workload), "package": rebuilt.package, "calls": calls},
        name="trace",
        env={**workload.env, **environment},
        timeout_s=workload.timeout_s,
        python=python,
        cwd=workload.cwd,
        gpus=gpus_of(package.device_type, workload.device_index),
    )
    events = await anyio.to_thread.run_sync(read_journal_file, journal)
    return _result(context, rebuilt, package, events, done.finished, environment, sync)


def journal_environment(journal: Path, sync: bool, stop_at: int | None) -> dict[str, str]:
    """What makes an instrumented package write its journal, in Python and in a C++ host alike."""
    stop = {} if stop_at is None else {"AOTI_DEBUG_STOP_AT": str(stop_at)}
    return {"AOTI_DEBUG_JOURNAL": str(journal), "AOTI_DEBUG_SYNC": str(int(sync)), **stop}


def _prepared(rebuilt: Instrumented, environment: dict[str, str], sync: bool) -> Trace:
    return Trace(
        how="not_run",
        summary="The package is instrumented: load it instead of the original, with this environment.",
        synchronous=sync,
        package=rebuilt.package,
        environment=environment,
        skipped=_skipped(rebuilt),
        rebuild_s=rebuilt.timings.total_s,
        cached=rebuilt.cached,
    )


def _result(
    context: Context,
    rebuilt: Instrumented,
    package: Package,
    journal: Journal,
    finished: Finished,
    environment: dict[str, str],
    sync: bool,
) -> Trace:
    known = known_launches(package)
    rows = [_row(launch, known) for launch in journal.launches]
    ending = journal.ending
    last = _row(ending.launch, known) if ending.launch is not None else None
    path = context.directory / "trace.json"
    path.write_text(json.dumps([row.model_dump(mode="json") for row in rows], indent=1))
    raw = Path(environment["AOTI_DEBUG_JOURNAL"])
    artifacts = [context.artifact(path, "every launch, as JSON")]
    if raw.exists():
        artifacts.append(context.artifact(raw, "the journal as written"))
    return Trace(
        how=ending.how,
        summary=_summary(journal, last, finished, sync),
        last=last,
        launches=rows[-ROWS:],
        total=len(rows) + journal.forgotten,
        calls=len(journal.calls),
        synchronous=sync,
        failure=read_failure(finished),
        package=rebuilt.package,
        environment=environment,
        skipped=_skipped(rebuilt),
        cut_lines=journal.cut_lines,
        rebuild_s=rebuilt.timings.total_s,
        cached=rebuilt.cached,
        artifacts=artifacts,
    )


def _summary(journal: Journal, last: LaunchRow | None, finished: Finished, sync: bool) -> str:
    """One sentence; it claims no more than that the journal ends there."""
    if last is None:
        return f"No launch began; the process ended with {_end(finished)}."
    where = f"launch {last.launch} ({last.kernel})"
    if journal.ending.how == "returned":
        return f"All {len(journal.launches)} launches of {len(journal.calls)} calls came back."
    if journal.ending.how == "fault":
        fault = journal.ending.launch.fault if journal.ending.launch else ""
        return f"The device reported {fault} after {where}; launches before it had been waited for."
    if journal.ending.how == "threw":
        return f"An exception left {where}."
    if journal.ending.how == "between":
        return (
            f"The process ended with {_end(finished)} after {where} had come back and before the next launch."
        )
    later = "" if sync else " Launches are asynchronous on a GPU: an earlier one may be guilty."
    return f"The process ended with {_end(finished)} during {where}.{later}"


def _end(finished: Finished) -> str:
    return finished.signal or (
        f"exit status {finished.returncode}" if finished.ending == "exit" else finished.ending
    )


@dataclass(frozen=True)
class KnownLaunch:
    """What the wrapper says of a launch: its line, and the model's lines."""

    line: int
    model: tuple[ModelLocation, ...]


def known_launches(package: Package) -> dict[int, KnownLaunch]:
    """By the number under which probes report a launch."""
    wrapper = read_wrapper(package.wrapper_text, package.kernel_text)
    information = package.kernel_information
    return {
        number: KnownLaunch(launch.line, read_provenance(launch, information).locations)
        for number, launch in numbered(wrapper)
    }


def _row(launch: JournalLaunch, known: Mapping[int, KnownLaunch]) -> LaunchRow:
    fact = known.get(launch.launch)
    shown = [describe_argument(argument) for argument in launch.arguments[:ARGUMENTS]]
    more = len(launch.arguments) - len(shown)
    return LaunchRow(
        launch=launch.launch,
        sequence=launch.sequence,
        call=launch.run[2],
        kernel=launch.kernel,
        line=fact.line if fact else None,
        state="fault" if launch.fault else "open" if launch.ended_ns is None else "done",
        seconds=launch.seconds,
        arguments=[*shown, *([f"and {more} more"] if more else [])],
        model=list(fact.model) if fact else [],
    )


def describe_argument(argument: JournalArgument) -> str:
    """`buf0 out_ptr0 written float32 (8, 16) stride (16, 1) at 0x7f…`, or `ks0 = 8`."""
    if argument.value is not None:
        return f"{argument.parameter or argument.name} = {argument.value}"
    if argument.tensor is None:
        return f"{argument.name} {argument.parameter} {argument.role} undefined"
    tensor = argument.tensor
    where = "" if tensor.device == "cpu" else f" {tensor.device}"
    return (
        f"{argument.name} {argument.parameter} {argument.role} {tensor.dtype} {tensor.shape} "
        f"stride {tensor.stride}{where} at {tensor.pointer:#x}"
    )


def _skipped(rebuilt: Instrumented) -> list[SkippedLaunch]:
    return [SkippedLaunch(**asdict(skipped)) for skipped in rebuilt.skipped]
