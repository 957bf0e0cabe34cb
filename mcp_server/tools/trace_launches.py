"""`trace_launches`: lists every launch of a run with its arguments, and the one at which the run ended."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import Field

from mcp_server.jobs.child import Finished
from mcp_server.logs.journal import Journal, JournalArgument, JournalLaunch, read_journal_file
from mcp_server.model import Artifact, ModelLocation, PackageWorkload, Record
from mcp_server.package.view import PackageView, view_package
from mcp_server.plurals import capitalized, counted
from mcp_server.probes.build import with_probes
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Skipped
from mcp_server.probes.rewrite import numbered
from mcp_server.runtime.context import Context, gpus_of
from mcp_server.runtime.failure import Failure, read_failure
from mcp_server.tools.requests import run_request

ROWS = 60
ARGUMENTS = 12

How = Literal["returned", "fault", "threw", "died", "between", "not_started", "not_run"]


class LaunchRow(Record):
    """One launch of the trace. `seconds` is host time, until the device has finished.

    `arguments` are one line each; `line` is in wrapper.cpp.
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


class Trace(Record):
    """The result. `launches` are the last ones; `total` counts all, which `trace.json` contains.

    `package` is the instrumented package: a C++ host loads it with `environment` set and needs no Python.
    """

    how: How
    summary: str
    last: LaunchRow | None = None
    launches: list[LaunchRow] = Field(default_factory=list)
    total: int = 0
    calls: int = 0
    failure: Failure | None = None
    package: Path
    environment: dict[str, str]
    skipped: list[Skipped] = Field(default_factory=list)
    cut_lines: int = 0
    rebuild_s: float
    cached: bool
    artifacts: list[Artifact] = Field(default_factory=list)


async def trace_launches(
    context: Context, workload: PackageWorkload, *, calls: int = 1, cache: Cache | None = None
) -> Trace:
    """Instrument the package, run it `calls` times, and read the journal of its launches.

    Without inputs nothing runs: the result has the instrumented package and its environment, for the user's
    own host. The package waits for the device after each launch, so that a fault stops at the launch that
    caused it. Raise `ProblemError` if the package cannot be rebuilt.
    """
    rebuilt = await with_probes(context, workload, cache=cache)
    journal_file = context.directory / "launches.jsonl"
    environment = journal_environment(journal_file)
    prepared = Trace(
        how="not_run",
        summary="The package is instrumented: load it instead of the original, with this environment.",
        package=rebuilt.package,
        environment=environment,
        skipped=list(rebuilt.skipped),
        rebuild_s=rebuilt.seconds,
        cached=rebuilt.cached,
    )
    if workload.inputs is None:
        return prepared
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    done = await context.worker(
        "run",
        {**run_request(workload), "package": rebuilt.package, "calls": calls},
        name="trace",
        workload=workload,
        env=environment,
        gpus=gpus_of(view.package.device_type, workload.device_index),
    )
    return await anyio.to_thread.run_sync(_traced, context, prepared, journal_file, view, done.finished)


def _traced(
    context: Context, prepared: Trace, journal_file: Path, view: PackageView, finished: Finished
) -> Trace:
    """The trace of a run that has ended, from its journal."""
    journal = read_journal_file(journal_file)
    known = {
        number: (launch.line, view.provenance(launch).locations) for number, launch in numbered(view.wrapper)
    }
    rows = [_row(launch, known) for launch in journal.launches]
    ending = journal.ending
    last = _row(ending.launch, known) if ending.launch is not None else None
    path = context.directory / "trace.json"
    path.write_text(json.dumps([row.model_dump(mode="json") for row in rows], indent=1))
    artifacts = [context.artifact(path, "every launch, as JSON")]
    if journal_file.exists():
        artifacts.append(context.artifact(journal_file, "the journal as written"))
    update = {
        "how": ending.how,
        "summary": _summary(journal, last, finished),
        "last": last,
        "launches": rows[-ROWS:],
        "total": len(rows) + journal.forgotten,
        "calls": len(journal.calls),
        "failure": read_failure(finished),
        "cut_lines": journal.cut_lines,
        "artifacts": artifacts,
    }
    return prepared.model_copy(update=update)


def journal_environment(journal: Path) -> dict[str, str]:
    """The variables that make an instrumented package write its journal, in Python or a C++ host."""
    return {"AOTI_DEBUG_JOURNAL": str(journal), "AOTI_DEBUG_SYNC": "1"}


def _summary(journal: Journal, last: LaunchRow | None, finished: Finished) -> str:
    """Say in one sentence where the journal ends, without a claim about the cause."""
    status = f"exit status {finished.returncode}" if finished.ending == "exit" else finished.ending
    end = finished.signal or status
    if last is None:
        return f"No launch began; the process ended with {end}."
    where = f"launch {last.launch} ({last.kernel})"
    fault = journal.ending.launch.fault if journal.ending.launch else ""
    sentences = {
        "returned": f"All {counted(len(journal.launches), 'launch')} of "
        f"{counted(len(journal.calls), 'call')} returned.",
        "fault": f"The device reported {fault} after {where}; launches before it had been waited for.",
        "threw": f"{capitalized(where)} raised an exception.",
        "between": f"The process ended with {end} after {where} had returned and before the next launch.",
    }
    return sentences.get(journal.ending.how, f"The process ended with {end} during {where}.")


def _row(launch: JournalLaunch, known: Mapping[int, tuple[int, tuple[ModelLocation, ...]]]) -> LaunchRow:
    """Build a row. `known` maps a launch's probe number to its line in wrapper.cpp and its model lines."""
    line, model = known.get(launch.launch, (None, ()))
    shown = [describe_argument(argument) for argument in launch.arguments[:ARGUMENTS]]
    more = len(launch.arguments) - len(shown)
    return LaunchRow(
        launch=launch.launch,
        sequence=launch.sequence,
        call=launch.run[2],
        kernel=launch.kernel,
        line=line,
        state="fault" if launch.fault else "open" if launch.ended_ns is None else "done",
        seconds=launch.seconds,
        arguments=[*shown, *([f"and {more} more"] if more else [])],
        model=list(model),
    )


def describe_argument(argument: JournalArgument) -> str:
    """Describe an argument: `buf0 out_ptr0 written float32 (8, 16) stride (16, 1) at 0x7f…`, or `ks0 = 8`."""
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
