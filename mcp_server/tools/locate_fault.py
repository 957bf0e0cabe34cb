"""`locate_fault`: finds the launch, argument, generated line and producer behind a memory fault."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.logs.captured import CapturedCall
from mcp_server.memory_faults import Fault
from mcp_server.memory_faults.join import bare_fault, join_fault
from mcp_server.model import Artifact, Cost, PackageWorkload, Record
from mcp_server.package.members import refuse_unsafe
from mcp_server.package.view import view_package
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import REPORT, Context
from mcp_server.runtime.failure import Failure, read_failure
from mcp_server.tools.capture import Capture, capture
from mcp_server.tools.fault_run import (
    METHODS,
    PROVENANCE,
    FaultRun,
    Program,
    ProgramTarget,
    Target,
    Tool,
    order,
    prepare,
)
from mcp_server.tools.requests import called_package, check_inputs_given, failing_phase, plan_replay

OTHERS = 5  # faults listed in addition to the first


class Attempt(Record):
    """One method that was tried: what it found, or why it could not run."""

    tool: Tool
    ran: bool
    found: int = 0
    what: str = ""
    seconds: float = 0.0


class LocatedFault(Record):
    """The result. `fault` is the first fault of the package; `others` are not linked to launches.

    `errors` is the number of errors that the sanitizer reports. `instrumented`: launches and addresses come
    from a journal. `notes` are the limits of the answer.
    """

    found: bool
    tool: Tool | None
    summary: str
    fault: Fault | None = None
    others: list[Fault] = Field(default_factory=list)
    errors: int | None = None
    instrumented: bool
    attempts: list[Attempt] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    artifacts: list[Artifact] = Field(default_factory=list)
    cost: Cost


async def locate_fault(
    context: Context, workload: PackageWorkload, *, tool: Tool | Literal["auto"] = "auto"
) -> LocatedFault:
    """Run the call under checkers until one sees the fault, and link it to the package.

    On CUDA, `auto` tries memcheck, a core dump, then a wait after each launch; on a CPU, AddressSanitizer,
    then a native stack. Raise `ProblemError` for missing inputs, a tool that does not fit the device, or a
    package that cannot be read.
    """
    check_inputs_given(workload)
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    tools = order(tool, view.package.device_type)
    prepared: dict[Options, Target] = {}

    async def target_of(options: Options) -> Target:
        if options not in prepared:
            prepared[options] = await prepare(context, workload, options)
        return prepared[options]

    return result(context, *await search(context, tools, target_of))


async def search(
    context: Context, tools: tuple[Tool, ...], target_of: Callable[[Options], Awaitable[Target]]
) -> tuple[Target, FaultRun, list[Attempt]]:
    """Try methods in turn until one sees a fault; without a fault, return the last run."""
    attempts: list[Attempt] = []
    last: tuple[Target, FaultRun] | None = None
    refused: ProblemError | None = None
    for tool in tools:
        run, options = METHODS[tool]
        target = await target_of(options)
        try:
            found = await run(context, target)
        except ProblemError as problem:
            refused = problem
            attempts.append(Attempt(tool=tool, ran=False, what=str(problem)))
            continue
        seconds = round(found.done.finished.wall_s, 3)
        attempts.append(
            Attempt(tool=tool, ran=True, found=len(found.accesses), what=found.what, seconds=seconds)
        )
        last = target, found
        if found.accesses:
            break
    if refused is not None and len({each.what for each in attempts}) == 1:
        raise refused
    if last is None:
        raise ProblemError(
            "no checker could run: " + "; ".join(f"{a.tool}: {a.what}" for a in attempts),
            next_call="check_devices",
        )
    return *last, attempts


def result(context: Context, target: Target, found: FaultRun, attempts: list[Attempt]) -> LocatedFault:
    """Build the result: the facts of the last run, linked to the package."""
    fault = join_fault(target.view, found.accesses[0], found.evidence) if found.accesses else None
    ran = [attempt.tool for attempt in attempts if attempt.ran]
    nothing = f"No memory fault was seen ({', '.join(ran)}). The numbers may still be wrong."
    done = found.done
    artifacts = [context.artifact(done.finished.output, "output of the run that was looked at")]
    for path in sorted(done.directory.glob("*.jsonl")):
        if path.name != REPORT:
            artifacts.append(context.artifact(path, "the journal"))
    notes = []
    if target.why_not:
        notes.append(
            f"no probes, so the addresses of each launch's arguments are not known: {target.why_not}"
        )
    if fault is not None and fault.count > 1:
        notes.append(f"{fault.count} records of this site were printed")
    return LocatedFault(
        found=fault is not None,
        tool=ran[-1],
        summary=fault.summary if fault is not None else nothing,
        fault=fault,
        others=[bare_fault(access) for access in found.accesses[1 : 1 + OTHERS]],
        errors=found.errors,
        instrumented=target.rebuilt is not None,
        attempts=attempts,
        notes=notes,
        failure=read_failure(done.finished),
        artifacts=artifacts,
        cost=context.cost.cost(),
    )


_WITHOUT_PROBES: dict[str, tuple[Tool, ...]] = {"cuda": ("memcheck", "core_dump"), "cpu": ("native",)}


async def locate_in_program(
    context: Context, workload: Program, *, package: Path | None = None, tool: Tool | Literal["auto"] = "auto"
) -> LocatedFault:
    """Run the program once under the capture hook, then its failing call under checkers.

    The whole program is run under the checker if this call was not kept, shows no fault though the program
    failed, or may fail only in the replay of a CUDA graph. Addresses of arguments are then unknown. A C++
    host needs `package`, because the hook does not see its loads. Raise `ProblemError` for a program that
    cannot be started or whose package is unknown, and for an unsafe package.
    """
    if package is not None:
        refuse_unsafe(package)
    seen = await capture(context, workload, env={**PROVENANCE, **workload.env})
    call, note = captured_call(seen, workload)
    found: LocatedFault | None = None
    if call is not None:
        found = await locate_fault(context, call, tool=tool)
        phase = failing_phase(seen)
        place = f": {phase.location.file}:{phase.location.line}" if phase and phase.location else ""
        note = f"the call was repeated alone{place}"
    if found is None or not (found.found or (seen.finished.ok and not in_graph(seen))):
        note = note if found is None else "the call shows no fault when repeated alone"
        found = await run_under_checker(context, workload, seen, package=package, tool=tool)
    return found.model_copy(update={"notes": [note, *found.notes]})


def captured_call(seen: Capture, workload: Program) -> tuple[PackageWorkload | None, str]:
    """The failing or suspect call as a package workload, or None and the reason."""
    phase = failing_phase(seen)
    if in_graph(seen) and seen.failing is None and not seen.finished.ok:
        return (
            None,
            "the program replays CUDA graphs, which are not seen as calls, and failed outside of a call",
        )
    if not isinstance(phase, CapturedCall):
        return None, "the program failed outside of a call"
    try:
        request = plan_replay(seen, phase)
    except ProblemError as problem:
        return None, str(problem)
    if "library" in request or len(request["steps"]) != 1:
        return None, "the call depends on earlier steps: constants were updated, or a bare library was loaded"
    assert phase.file is not None, "what has a plan was kept"
    return called_package(request, phase.file, workload), ""


def in_graph(seen: Capture) -> bool:
    """Whether any call was recorded into a CUDA graph."""
    return any(call.in_graph for call in seen.calls)


async def run_under_checker(
    context: Context,
    workload: Program,
    seen: Capture,
    *,
    package: Path | None = None,
    tool: Tool | Literal["auto"] = "auto",
) -> LocatedFault:
    """Run the captured program again, unchanged, under a checker. May raise `ProblemError`."""
    view = await anyio.to_thread.run_sync(view_package, package or _loaded(seen))
    target = ProgramTarget(workload, view, not in_graph(seen), len(seen.processes) > 1)
    device = "cuda" if view.package.device_type == "cuda" else "cpu"
    tools = _WITHOUT_PROBES[device] if tool == "auto" else order(tool, device)

    async def as_it_is(_options: Options) -> Target:
        return target

    return result(context, *await search(context, tools, as_it_is))


def _loaded(seen: Capture) -> Path:
    """The package of the suspect call, or the last one loaded.

    A bare library is taken from where it was loaded, because its sources are in the same folder.
    """
    if not seen.loads:
        raise ProblemError(
            "no load of a package was seen: " + "; ".join(seen.notes),
            next_call="for a C++ host, pass its `package` together with the command",
        )
    call = seen.suspect or (seen.calls[-1] if seen.calls else None)
    load = (seen.load_of(call) if call else None) or seen.loads[-1]
    bare = load.loader != "AOTIModelPackageLoader" and load.package.exists()
    return load.package if bare else load.copy_path or load.package
