"""`locate_fault`: the launch, the argument, the generated line and the producer behind a memory fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import anyio
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.faults.access import Access
from mcp_server.faults.join import bare_fault, join_fault
from mcp_server.faults.records import Fault
from mcp_server.faults.situation import Evidence
from mcp_server.instrument.cache import Cache
from mcp_server.instrument.types import Options
from mcp_server.model import Artifact, Cost, PackageWorkload, Record
from mcp_server.package.view import view_package
from mcp_server.steps import visibility as plain
from mcp_server.steps.context import Context
from mcp_server.steps.failure import Failure, read_failure
from mcp_server.steps.fault_methods import METHODS, Found, Tool, order
from mcp_server.steps.fault_run import Target, prepare
from mcp_server.steps.requests import INPUTS_HELP
from mcp_server.steps.visibility import PlainRun, Visibility

OTHERS = 5


class Attempt(Record):
    """One method that was tried: what it found, or why it could not run."""

    tool: str
    ran: bool
    found: int = 0
    what: str = ""
    seconds: float = 0.0


class LocatedFault(Record):
    """The result. `fault` is the first fault of the package; `others` are further sites, not joined.

    `errors` is the sanitizer's own count. `instrumented` tells whether launches and addresses come from a
    journal; `notes` what limits the answer. `log` is the output of the run that found the fault.
    """

    found: bool
    tool: Tool | None
    summary: str
    fault: Fault | None = None
    others: list[Fault] = Field(default_factory=list)
    errors: int | None = None
    visibility: Visibility | None = None
    instrumented: bool
    attempts: list[Attempt] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    artifacts: list[Artifact] = Field(default_factory=list)
    cost: Cost


async def locate_fault(
    context: Context,
    workload: PackageWorkload,
    *,
    tool: Tool | Literal["auto"] = "auto",
    plain_runs: int = 1,
    gpus: tuple[int, ...] | None = None,
    cache: Cache | None = None,
) -> LocatedFault:
    """Run the call under checkers until one sees the fault, and join what it saw with the package.

    `auto` takes memcheck, a core dump, then waiting launches (CUDA); AddressSanitizer, then a native stack
    (CPU). `plain_runs` (0-20) of the original package, and one under the official flags, run beside it to
    tell how the fault shows; they take no lease of `gpus`. A fault is a result, and so is none. Raises
    `ProblemError` for missing inputs, a tool that does not fit the package's device, and a package that
    cannot be read.
    """
    _check(workload, plain_runs)
    tools = order(tool, view_package(workload.package, workload.model_name).package.device_type)
    runs: list[PlainRun] = []
    attempts: list[Attempt] = []
    outcome: list[tuple[Target, Found]] = []
    targets: dict[Options, Target] = {}

    async with anyio.create_task_group() as tasks:

        def prepared(options: Options) -> Target:
            if options not in targets:
                targets[options] = prepare(context, workload, options, tasks, cache=cache, gpus=gpus)
            return targets[options]

        async def look() -> None:
            outcome.append(await search(context, tools, attempts, prepared))

        tasks.start_soon(look)
        for flags, name in _plain(workload, plain_runs):
            tasks.start_soon(_plainly, context, workload, flags, name, runs)
    target, found = outcome[0]
    return result(context, target, found, attempts, plain.judge(runs, bool(found.accesses)))


def _check(workload: PackageWorkload, plain_runs: int) -> None:
    if workload.inputs is None:
        raise ProblemError("locating a fault needs inputs", allowed=INPUTS_HELP)
    if not 0 <= plain_runs <= 20:
        raise ProblemError("plain_runs is out of range", value=plain_runs, allowed="0 to 20")


def _plain(workload: PackageWorkload, count: int) -> list[tuple[dict[str, str], str]]:
    runs: list[tuple[dict[str, str], str]] = [({}, f"plain-{n + 1}") for n in range(count)]
    cuda = view_package(workload.package, workload.model_name).package.device_type == "cuda"
    return [*runs, (dict(plain.FLAGS), "official-flags")] if runs and cuda else runs


async def _plainly(
    context: Context, workload: PackageWorkload, flags: dict[str, str], name: str, runs: list[PlainRun]
) -> None:
    runs.append(await plain.run_plainly(context, workload, flags, name))


async def search(
    context: Context,
    tools: tuple[Tool, ...],
    attempts: list[Attempt],
    prepared: Callable[[Options], Target],
) -> tuple[Target, Found]:
    """One method after the other until one sees a fault; the last one's run otherwise."""
    last: tuple[Target, Found] | None = None
    for tool in tools:
        method = METHODS[tool]
        target = prepared(method.options)
        try:
            found = await method.run(context, target)
        except ProblemError as problem:
            attempts.append(Attempt(tool=tool, ran=False, what=str(problem)))
            continue
        attempts.append(_attempt(tool, found))
        last = target, found
        if found.accesses:
            return last
    if last is None:
        raise ProblemError(
            "no method could run: " + "; ".join(f"{a.tool}: {a.what}" for a in attempts),
            next_call="check_devices",
        )
    return last


def _attempt(tool: Tool, found: Found) -> Attempt:
    done = found.run.done.finished
    return Attempt(
        tool=tool, ran=True, found=len(found.accesses), what=found.what, seconds=round(done.wall_s, 3)
    )


def result(
    context: Context, target: Target, found: Found, attempts: list[Attempt], shown: Visibility | None
) -> LocatedFault:
    """What the last run showed, joined with the package."""
    fault = _first(target, found.accesses, found.run.evidence)
    done = found.run.done
    artifacts = [context.artifact(done.finished.output, "output of the run that was looked at")]
    for path in sorted(done.directory.glob("*")):
        if path.suffix in (".jsonl", ".xml") and path.name != "report.jsonl":
            artifacts.append(context.artifact(path, "the journal" if path.suffix == ".jsonl" else "records"))
    tool = next((a.tool for a in reversed(attempts) if a.ran), None)
    return LocatedFault.model_validate(
        {
            "found": fault is not None,
            "tool": tool,
            "summary": _summary(fault, attempts, shown),
            "fault": fault,
            "others": [bare_fault(access) for access in found.accesses[1 : 1 + OTHERS]],
            "errors": found.errors,
            "visibility": shown,
            "instrumented": target.rebuilt is not None,
            "attempts": attempts,
            "notes": _notes(target, fault, shown),
            "failure": read_failure(done.finished),
            "artifacts": artifacts,
            "cost": context.cost.cost(),
        }
    )


def _first(target: Target, accesses: list[Access], evidence: Evidence) -> Fault | None:
    return join_fault(target.view, accesses[0], evidence) if accesses else None


def _summary(fault: Fault | None, attempts: list[Attempt], shown: Visibility | None) -> str:
    if fault is None:
        tried = ", ".join(a.tool for a in attempts if a.ran)
        return f"No memory fault was seen ({tried}). That does not clear the numbers."
    return f"{fault.summary} {shown.summary}" if shown else fault.summary


def _notes(target: Target, fault: Fault | None, shown: Visibility | None) -> list[str]:
    notes = []
    if target.why_not:
        notes.append(f"no probes, so no addresses of launches: {target.why_not}")
    outside = fault.missed.bytes_outside if fault and fault.missed else None
    if shown and shown.how == "silent" and outside is not None and outside < 1 << 21:
        notes.append(
            f"{outside} bytes outside lie within what the driver maps together, so hardware does not fault: "
            "it shows only where each tensor has padding or a checker watches"
        )
    if fault is not None and fault.count > 1:
        notes.append(f"{fault.count} records of this site were printed")
    return notes
