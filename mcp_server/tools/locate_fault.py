"""`locate_fault`: the launch, the argument, the generated line and the producer behind a memory fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command
from mcp_server.logs.captured import CapturedCall, CapturedLoad
from mcp_server.memory_faults.access import Access
from mcp_server.memory_faults.join import bare_fault, join_fault
from mcp_server.memory_faults.records import Fault
from mcp_server.memory_faults.situation import Evidence
from mcp_server.model import Artifact, CommandWorkload, Cost, PackageWorkload, Record, ScriptWorkload
from mcp_server.package.members import refuse_unsafe
from mcp_server.package.view import PackageView, view_package
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.tools.capture import Capture, capture, workload_argv
from mcp_server.tools.context import Context, WorkerRun
from mcp_server.tools.failure import Failure, read_failure
from mcp_server.tools.fault_methods import METHODS, Found, Tool, order
from mcp_server.tools.fault_run import FaultRun, Target, prepare
from mcp_server.tools.requests import INPUTS_HELP, called_package, failing_phase, plan_replay, run_request
from mcp_server.tools.run_deterministic import BLOCKING, CACHING_OFF

How = Literal["plain", "official_flags", "flaky", "silent", "not_seen"]

FLAGS = {**CACHING_OFF, **BLOCKING}


class PlainRun(Record):
    """One run without a checker: `flags` that were set, and how it ended (empty: well)."""

    flags: dict[str, str]
    failed: bool
    text: str = ""
    seconds: float


class Visibility(Record):
    """`silent`: no run without a checker failed. `flaky`: only some of the plain runs did (`failing` of
    `runs`). `not_seen`: nothing at all was found."""

    how: How
    summary: str
    failing: int = 0
    runs: list[PlainRun] = Field(default_factory=list)


async def run_plainly(
    context: Context, workload: PackageWorkload, flags: Mapping[str, str], name: str
) -> PlainRun:
    """The original package, once. It takes no lease of a GPU: it runs beside the checker."""
    done = await context.worker(
        "run",
        run_request(workload),
        name=name,
        env={**workload.env, **flags},
        timeout_s=workload.timeout_s,
        python=workload.python,
        cwd=workload.cwd,
        gpus=(),
        alone=True,
    )
    failure = read_failure(done.finished)
    text = f"{failure.signal or failure.returncode}: {failure.text}"[:300] if failure else ""
    return PlainRun(
        flags=dict(flags), failed=_failed(done), text=text, seconds=round(done.finished.wall_s, 3)
    )


def _failed(done: WorkerRun) -> bool:
    return not done.finished.ok or done.last("called") is None


def judge(runs: list[PlainRun], found: bool) -> Visibility | None:
    """None when no such run was made."""
    if not runs:
        return None
    plain = [run for run in runs if not run.flags]
    flagged = [run for run in runs if run.flags]
    failing = sum(run.failed for run in plain)
    how = _how(failing, len(plain), any(run.failed for run in flagged), found)
    summary = _WORDS[how].format(failing=failing, plain=len(plain))
    return Visibility(how=how, summary=summary, failing=failing, runs=runs)


def _how(failing: int, plain: int, flagged: bool, found: bool) -> How:
    if plain and failing == plain:
        return "plain"
    if failing:
        return "flaky"
    if flagged:
        return "official_flags"
    return "silent" if found else "not_seen"


_WORDS: dict[How, str] = {
    "plain": "A plain run fails too.",
    "official_flags": "A plain run passes; with the caching allocator off and blocking launches it fails.",
    "flaky": "Flaky: {failing} of {plain} plain runs fail.",
    "silent": "No run without a checker fails: wrong numbers are all that a user would see, if that.",
    "not_seen": "No run failed, with or without a checker.",
}


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
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    tools = order(tool, view.package.device_type)
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
    return result(context, target, found, attempts, judge(runs, bool(found.accesses)))


def _check(workload: PackageWorkload, plain_runs: int) -> None:
    if workload.inputs is None:
        raise ProblemError("locating a fault needs inputs", allowed=INPUTS_HELP)
    if not 0 <= plain_runs <= 20:
        raise ProblemError("plain_runs is out of range", value=plain_runs, allowed="0 to 20")


def _plain(workload: PackageWorkload, count: int) -> list[tuple[dict[str, str], str]]:
    runs: list[tuple[dict[str, str], str]] = [({}, f"plain-{n + 1}") for n in range(count)]
    cuda = view_package(workload.package, workload.model_name).package.device_type == "cuda"
    return [*runs, (dict(FLAGS), "official-flags")] if runs and cuda else runs


async def _plainly(
    context: Context, workload: PackageWorkload, flags: dict[str, str], name: str, runs: list[PlainRun]
) -> None:
    runs.append(await run_plainly(context, workload, flags, name))


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


Program = ScriptWorkload | CommandWorkload

_NO_PROBES = "the program itself was run, with the package as it is"
_PROVENANCE = {"INDUCTOR_PROVENANCE": "1"}  # a compile in the run then writes the model lines, too
_WITHOUT_PROBES: dict[str, tuple[Tool, ...]] = {"cuda": ("memcheck", "core_dump"), "cpu": ("native",)}


async def locate_in_program(
    context: Context,
    workload: Program,
    *,
    package: Path | None = None,
    tool: Tool | Literal["auto"] = "auto",
    plain_runs: int = 1,
    cache: Cache | None = None,
) -> LocatedFault:
    """Run the program once under the capture hook, then its failing call under checkers.

    When that call was not kept, or shows no fault by itself though the program failed, or the fault can be
    in the replay of a CUDA graph, the program itself is run under the checker: launches then carry no
    addresses. `package` is the one of a host that the hook does not see into (C++). Raises `ProblemError` for
    a program that cannot be started, or of which no package is known, and for an unsafe package.
    """
    if package is not None:
        refuse_unsafe(package)
    seen = await capture(context, workload, env={**_PROVENANCE, **workload.env})
    found: LocatedFault | None = None
    call, why = captured_call(seen, workload)
    if call is not None:
        found = await locate_fault(context, call, tool=tool, plain_runs=plain_runs, cache=cache)
        why = "the call by itself shows no fault"
    if found is not None and (found.found or (seen.finished.ok and not in_graph(seen))):
        return _with_notes(found, [_which(seen)])
    return _with_notes(await run_under_checker(context, workload, seen, package=package, tool=tool), [why])


def captured_call(seen: Capture, workload: Program) -> tuple[PackageWorkload | None, str]:
    """The failing or suspect call as a package workload, or None and why it cannot be one."""
    phase = failing_phase(seen)
    if in_graph(seen) and seen.failing is None and not seen.finished.ok:
        return None, "the program replays CUDA graphs, which are no calls, and failed outside of one"
    if not isinstance(phase, CapturedCall):
        return None, "the program failed outside of a call"
    try:
        plan = plan_replay(seen, phase)
    except ProblemError as problem:
        return None, str(problem)
    if "library" in plan.request or len(plan.request["steps"]) != 1:
        return None, "the call needs its runner's history: constants were updated, or a bare library loaded"
    assert phase.file is not None, "what has a plan was kept"
    return called_package(plan, phase.file, workload), ""


def in_graph(seen: Capture) -> bool:
    """Whether calls were recorded into a CUDA graph."""
    return any(call.in_graph for call in seen.calls)


def _loaded(seen: Capture) -> Path:
    """The package of the call to suspect, else the last one that was loaded.

    A bare library is taken from where it was loaded: its sources lie beside it.
    """
    if not seen.loads:
        raise ProblemError(
            "no load of a package was seen: " + "; ".join(seen.notes),
            next_call="for a C++ host, give its `package` beside the command",
        )
    call = seen.suspect or (seen.calls[-1] if seen.calls else None)
    load: CapturedLoad = (seen.load_of(call) if call else None) or seen.loads[-1]
    bare = load.loader != "AOTIModelPackageLoader" and load.package.exists()
    return load.package if bare else load.copy_path or load.package


@dataclass(frozen=True)
class ProgramTarget:
    """The user's own program. `caching_off` may not be set where it captures CUDA graphs."""

    workload: Program
    view: PackageView
    caching_off: bool = True
    children: bool = False
    rebuilt: Instrumented | None = field(default=None, init=False)
    why_not: str = field(default=_NO_PROBES, init=False)

    async def settled(self) -> None:
        """Nothing is being rebuilt."""

    async def run(
        self,
        context: Context,
        name: str,
        *,
        env: Mapping[str, str],
        unset: Sequence[str] = (),
        prefix: Sequence[str] = (),
        directory: Path | None = None,
    ) -> FaultRun:
        """Run it once; without probes there is no journal."""
        directory = directory or context.fresh(name)
        wanted = {**_PROVENANCE, **self.workload.env, **env}
        kept = [key for key in wanted if key not in unset and (self.caching_off or key not in CACHING_OFF)]
        command = Command(
            argv=(*self._with_children(prefix), *workload_argv(context, self.workload)),
            cwd=self.workload.cwd or Path.cwd(),
            env={key: wanted[key] for key in kept},
            timeout_s=self.workload.timeout_s,
            unset=tuple(unset),
        )
        finished = await context.run_in(directory, command, runs=1)
        done = WorkerRun(finished, (), directory, context.python_for(self.workload))
        return FaultRun(done, Evidence())

    def _with_children(self, prefix: Sequence[str]) -> tuple[str, ...]:
        """compute-sanitizer follows child processes only where the call was made in one."""
        wide = {"application-only": "all"} if self.children else {}
        return tuple(wide.get(word, word) for word in prefix)


async def run_under_checker(
    context: Context,
    workload: Program,
    seen: Capture,
    *,
    package: Path | None = None,
    tool: Tool | Literal["auto"] = "auto",
) -> LocatedFault:
    """Run the captured program once more, as it is, under a checker. Raises `ProblemError` like the above."""
    view = await anyio.to_thread.run_sync(view_package, package or _loaded(seen))
    target = ProgramTarget(workload, view, not in_graph(seen), len(seen.processes) > 1)
    device = "cuda" if target.view.package.device_type == "cuda" else "cpu"
    tools = _WITHOUT_PROBES[device] if tool == "auto" else order(tool, device)
    attempts: list[Attempt] = []
    last, found = await search(context, tools, attempts, lambda _options: target)
    return result(context, last, found, attempts, _shown(seen, bool(found.accesses)))


def _shown(seen: Capture, found: bool) -> Visibility | None:
    """The run under the hook is a plain one."""
    failure = read_failure(seen.finished)
    text = f"{failure.signal or failure.returncode}: {failure.text}"[:300] if failure else ""
    run = PlainRun(flags={}, failed=not seen.finished.ok, text=text, seconds=round(seen.finished.wall_s, 3))
    return judge([run], found)


def _which(seen: Capture) -> str:
    """Which call of the program was made again."""
    phase = failing_phase(seen)
    place = phase.location if phase is not None else None
    return "the call was made again by itself" + (f": {place.file}:{place.line}" if place else "")


def _with_notes(found: LocatedFault, notes: list[str]) -> LocatedFault:
    return found.model_copy(update={"notes": [*notes, *found.notes]})
