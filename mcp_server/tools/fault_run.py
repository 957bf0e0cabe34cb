"""What `locate_fault` runs under a checker: one call of a package, or the user's whole program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Command
from mcp_server.logs.crash_reports import Access
from mcp_server.logs.journal import read_journal_file
from mcp_server.memory_faults.situation import Evidence, ValueRange
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.view import PackageView, view_package
from mcp_server.probes.build import with_probes
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.tools.capture import workload_argv
from mcp_server.tools.check_devices import from_leaves
from mcp_server.tools.kernel_io import unset_arguments
from mcp_server.tools.requests import run_request
from mcp_server.tools.run_deterministic import CACHING_OFF
from mcp_server.tools.trace_launches import journal_environment
from mcp_server.worker import events

MOST_NAMES = 200  # integer tensors whose range is read in the faulting run

PROVENANCE = {"INDUCTOR_PROVENANCE": "1"}  # a compile in the run then also records the model lines

_INTEGERS = ("int", "uint", "bool")

Program = ScriptWorkload | CommandWorkload


@dataclass(frozen=True)
class FaultRun:
    """One run, and what a method saw in it; `errors` is the tool's own count."""

    done: WorkerRun
    evidence: Evidence = field(default_factory=Evidence)
    accesses: Sequence[Access] = ()
    errors: int | None = None
    what: str = ""


@dataclass
class PackageTarget:
    """One call of a package, with probes if it can be rebuilt; otherwise `why_not` says why.

    A worker that starts before the rebuild has ended waits for the file `handoff`, which names the package to
    load. `settled` is set once `rebuilt` and `why_not` are known.
    """

    workload: PackageWorkload
    view: PackageView
    handoff: Path
    rebuilt: Instrumented | None = None
    why_not: str = ""
    settled: anyio.Event = field(default_factory=anyio.Event)

    async def rebuild(self, context: Context, options: Options, cache: Cache | None) -> None:
        """Rebuild the package with probes; if that fails, the package is run as it is."""
        workload = self.workload
        try:
            self.rebuilt = await with_probes(context, workload, options, cache)
        except ProblemError as problem:
            self.why_not = str(problem)
        package = self.rebuilt.package if self.rebuilt else workload.package
        partial = self.handoff.with_suffix(".partial")
        partial.write_text(json.dumps({"package": str(package), "probes": self.rebuilt is not None}))
        partial.rename(self.handoff)
        self.settled.set()

    async def run(
        self,
        context: Context,
        directory: Path,
        *,
        env: Mapping[str, str],
        unset: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> FaultRun:
        """Run the call once, waiting for the device after each launch; a crash is a result.

        `directory`, from `fresh`, gets the output.
        """
        journal = directory / "launches.jsonl"
        request = {
            **run_request(self.workload),
            "handoff": self.handoff,
            "warm": self.view.package.device_type,
            # The integer tensors of each launch, before it.
            "names": integer_tensors(self.view)[:MOST_NAMES],
            "phases": ["before"],
            "skip_before": unset_arguments(self.view),
        }
        probes = self.rebuilt.environment if self.rebuilt else {}
        done = await context.worker(
            "observe",
            request,
            directory=directory,
            workload=self.workload,
            env={**probes, **env, **journal_environment(journal, True, None)},
            unset=unset,
            prefix=prefix,
        )
        await self.settled.wait()
        given = done.last(events.Given)
        leaves = given.leaves if given is not None else []
        tensors = [replace(leaf, kind=leaf.kind or "tensor") for leaf in leaves if leaf.shape is not None]
        flat = from_leaves(tensors, None).tensors if len(tensors) == len(leaves) else ()
        if self.rebuilt is None:
            return FaultRun(done, Evidence(inputs=flat))
        ranges, launches = read_ranges(done.all(events.Argument)), read_journal_file(journal)
        return FaultRun(done, Evidence(journal=launches, synchronous=True, ranges=ranges, inputs=flat))


def prepare(
    context: Context,
    workload: PackageWorkload,
    options: Options,
    tasks: TaskGroup,
    *,
    cache: Cache | None = None,
) -> PackageTarget:
    """Begin to rebuild the package with probes, as one of `tasks`."""
    view = view_package(workload.package, workload.model_name)
    target = PackageTarget(workload, view, context.fresh("rebuild") / "package.json")
    tasks.start_soon(target.rebuild, context, options, cache)
    return target


@dataclass
class ProgramTarget:
    """The user's own program. `caching_off` is False if it captures CUDA graphs, which forbid the variable.

    `children` means that a child process made the call, so compute-sanitizer must follow child processes.
    """

    workload: Program
    view: PackageView
    caching_off: bool = True
    children: bool = False
    rebuilt = None
    why_not = "the program itself was run, with the package as it is"

    async def run(
        self,
        context: Context,
        directory: Path,
        *,
        env: Mapping[str, str],
        unset: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> FaultRun:
        """Run the program once; without probes there is no journal."""
        wanted = {**PROVENANCE, **self.workload.env, **env}
        kept = [key for key in wanted if key not in unset and (self.caching_off or key not in CACHING_OFF)]
        scope = {"application-only": "all"} if self.children else {}
        command = Command(
            argv=(*(scope.get(word, word) for word in prefix), *workload_argv(context, self.workload)),
            cwd=self.workload.cwd or Path.cwd(),
            env={key: wanted[key] for key in kept},
            timeout_s=self.workload.timeout_s,
            unset=tuple(unset),
        )
        finished = await context.run_in(directory, command, runs=1)
        return FaultRun(WorkerRun(finished, (), directory, context.python_for(self.workload)))


Target = PackageTarget | ProgramTarget


def integer_tensors(view: PackageView) -> list[str]:
    """List variables that may hold indices, including those of unknown type (results of operators)."""
    types = {i.name: i.dtype for i in view.package.inputs}
    types |= {c.name: c.dtype for c in view.package.constants}
    types |= {b.name: b.dtype for b in view.wrapper.buffers.values() if b.dtype and b.name not in types}
    used = dict.fromkeys(name for launch in view.wrapper.launches for name in launch.reads)
    return [name for name in used if (types.get(name) or "int").startswith(_INTEGERS)]


def read_ranges(seen: Iterable[events.Argument]) -> dict[tuple[int, str], ValueRange]:
    """Return minimum and maximum element by launch and variable; if a launch ran twice, the last."""
    return {
        (each.launch, each.name): ValueRange(int(each.min), int(each.max))
        for each in seen
        if each.min is not None and each.max is not None and (each.dtype or "").startswith(_INTEGERS)
    }
