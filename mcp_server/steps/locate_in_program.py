"""`locate_fault` of a script or command: its failing call made again by itself, else the program as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mcp_server.errors import ProblemError
from mcp_server.evidence.captured import CapturedCall, CapturedLoad
from mcp_server.faults.situation import Evidence
from mcp_server.instrument.cache import Cache
from mcp_server.instrument.types import Instrumented
from mcp_server.jobs.types import Command
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.members import refuse_unsafe
from mcp_server.package.view import PackageView, view_package
from mcp_server.steps import visibility as plain
from mcp_server.steps.capture import Capture, capture, workload_argv
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.failure import read_failure
from mcp_server.steps.fault_methods import Tool, order
from mcp_server.steps.fault_run import FaultRun
from mcp_server.steps.locate_fault import Attempt, LocatedFault, locate_fault, result, search
from mcp_server.steps.replay_plan import called_package, failing_phase, plan_replay
from mcp_server.steps.run_deterministic import CACHING_OFF
from mcp_server.steps.visibility import PlainRun, Visibility

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
    view = view_package(package or _loaded(seen))
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
    return plain.judge([run], found)


def _which(seen: Capture) -> str:
    """Which call of the program was made again."""
    phase = failing_phase(seen)
    place = phase.location if phase is not None else None
    return "the call was made again by itself" + (f": {place.file}:{place.line}" if place else "")


def _with_notes(found: LocatedFault, notes: list[str]) -> LocatedFault:
    return found.model_copy(update={"notes": [*notes, *found.notes]})
