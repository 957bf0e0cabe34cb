"""`--symptom slow`, `slow-load`, `slow-build`: nothing fails, but a call, a load or a build takes too long.

Of a build, the part that takes the time is found, and the build is made without this part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from mcp_server.cost.call import diagnose_call
from mcp_server.cost.signals import ISA_OK, LEAST_WIN, Lever, Win, loss, no_loss, told
from mcp_server.diagnosis.causes.wrong_output import LOAD_ONCE, loaded_often
from mcp_server.diagnosis.observe.program import suspect_call
from mcp_server.errors import ProblemError
from mcp_server.model import (
    Component,
    CostSymptom,
    Evidence,
    ExportedWorkload,
    Fix,
    ModelLocation,
    PackageWorkload,
    ScriptWorkload,
    Verdict,
    Workload,
    WorkloadBase,
)
from mcp_server.plurals import counted
from mcp_server.runtime.context import Context
from mcp_server.tools.capture import Capture, capture
from mcp_server.worker.events import BuildTimed, LinesTraced, LoadedIn, TracedLine

LEAST_SHARE = 0.2  # of a build; a smaller part is not worth a change
LEAST_TIMES = 16  # a line traced more often is the body of a loop
LEAST_OF_NODES = 0.4
CACHE = "TORCHINDUCTOR_CACHE_DIR"
TUNING = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")


async def diagnose_build(
    context: Context,
    workload: WorkloadBase,
    program: Path,
    configs: dict[str, object],
    *,
    budget_s: float,
) -> Verdict:
    """Build with an empty cache, then without the slowest part. Raise `ProblemError` if the build fails."""
    build = _Build(context, workload, program, budget_s)
    first = await build.timed(configs)
    cost, lines = context.cost.cost, build.lines
    loops = [each for each in lines if each.times >= LEAST_TIMES and each.share >= LEAST_OF_NODES]
    if first is None:
        return _unended(context, build, loops)
    evidence = [*_parts_of(first), *_nodes_of(lines)]
    changes = _changes(first, configs)
    for change in changes if budget_s > 3 * first.seconds else []:
        win = await build.without(first, configs, change)
        if win is not None:
            party = Component(kind="environment", name=change.name)
            what = win.lever.what
            summary = f"{_told(first)} {change.why} {what[:1].upper()}{what[1:]}, it takes {told(win.after)}."
            return loss(change.headline, summary, party, win, cost(), evidence)
    if loops:
        return _unrolled(context, _told(first), loops[0], evidence)
    if changes and budget_s <= 3 * first.seconds:
        change = changes[0]
        party = Component(kind="environment", name=change.name)
        why = f"that takes two more builds, so give --budget-s {math.ceil(4 * first.seconds)} or more."
        fix = Fix(text=change.lever.fix, after=change.lever.code)
        summary = f"{_told(first)} {change.why}"
        return loss(change.headline, summary, party, fix, cost(), evidence, why)
    return no_loss(f"{_told(first)} No change saved time.", cost(), evidence)


@dataclass(frozen=True)
class _Change:
    """Options and variables of a build that omit a part of it."""

    name: str
    headline: str
    why: str
    lever: Lever
    configs: dict[str, object]
    env: dict[str, str]


def _changes(first: BuildTimed, configs: dict[str, object]) -> list[_Change]:
    """List the changes whose part takes a fifth of the build, the largest first."""
    tuned = [name for name in TUNING if configs.get(name)]
    rows = []
    if tuned:
        listed = ", ".join(tuned)
        change = _Change(
            tuned[0],
            "autotuning takes most of the build",
            f"Autotuning takes {told(first.tuning)}.",
            Lever(
                f"without {listed}",
                f"compile without {listed}, or keep the results of autotuning in {CACHE}",
                note="kernels are no longer autotuned",
            ),
            {name: value for name, value in configs.items() if name not in tuned},
            {},
        )
        rows.append((first.tuning, change))
    change = _Change(
        ISA_OK,
        "the build compiles tests of the processor",
        f"With an empty cache, tests of the vector instructions take {told(first.testing)}.",
        Lever(
            f"with {ISA_OK}=1",
            f"keep {CACHE} from one build to the next, or set {ISA_OK}=1 where the compiler is known to work",
            f"{ISA_OK}=1",
            "the instructions are no longer tested",
        ),
        configs,
        {ISA_OK: "1"},
    )
    rows.append((first.testing, change))
    rows.sort(key=lambda each: -each[0])
    return [change for seconds, change in rows if seconds >= LEAST_SHARE * first.seconds]


class _Build:
    """Builds of one program, each in a process with an empty compile cache."""

    def __init__(self, context: Context, workload: WorkloadBase, program: Path, budget_s: float) -> None:
        self.limit = min(workload.timeout_s, budget_s)
        self.context, self.program = context, program
        self.workload = workload.model_copy(update={"timeout_s": self.limit})
        self.lines: list[TracedLine] = []

    async def timed(
        self, configs: dict[str, object], env: Mapping[str, str] | None = None
    ) -> BuildTimed | None:
        """Time one build; None if it does not end in time. Raise `ProblemError` if it fails."""
        folder = self.context.fresh("build")
        request = {
            "exported": str(self.program),
            "package_path": str(folder / "model.pt2"),
            "inductor_configs": configs,
        }
        around = {CACHE: str(folder / "cache"), **(env or {})}
        unset = () if ISA_OK in around else (ISA_OK,)
        run = await self.context.worker(
            "time_build", request, env=around, unset=unset, workload=self.workload
        )
        traced, found = run.last(LinesTraced), run.last(BuildTimed)
        self.lines = traced.lines if traced is not None else self.lines
        if found is None and run.finished.ending != "timeout":
            raise ProblemError(
                f"the build could not be timed: {run.why} ({run.phase.replace('_', ' ')})",
                value=str(self.program),
                allowed="a program that compiles; without symptom, its failure is diagnosed",
            )
        return found

    async def without(self, first: BuildTimed, configs: dict[str, object], change: _Change) -> Win | None:
        """Time the changed build and the original again; None if the change saved no time."""
        second = await self.timed(change.configs, change.env)
        if second is None or first.seconds / second.seconds < LEAST_WIN:
            return None
        third = await self.timed(configs)
        if third is None or third.seconds / second.seconds < LEAST_WIN:
            return None
        ratio = min(first.seconds, third.seconds) / second.seconds
        faster = f"at least {ratio:.1f} times as fast"
        return Win(change.lever, first.seconds, second.seconds, third.seconds, faster, "build")


def _unended(context: Context, build: _Build, loops: list[TracedLine]) -> Verdict:
    """Report a build that was stopped. An unrolled loop shows in the trace; the parts of the build do not."""
    summary, evidence = f"The build did not end within {build.limit:g} s.", _nodes_of(build.lines)
    if loops:
        return _unrolled(context, summary, loops[0], evidence)
    advice = "The parts are known only after a build that ends: use a higher --budget-s and --timeout-s."
    return no_loss(f"{summary} {advice}", context.cost.cost(), evidence, "inconclusive")


def _unrolled(context: Context, took: str, line: TracedLine, evidence: list[Evidence]) -> Verdict:
    """Report an unrolled Python loop: each pass becomes separate code."""
    place = ModelLocation(file=line.file, line=line.line, code=line.code)
    times = f"{PurePath(line.file).name}:{line.line} was traced {line.times} times"
    return loss(
        "a loop is compiled once for each pass",
        f"{took} {times}, and makes {line.share:.0%} of the graph: a Python loop is unrolled.",
        Component(kind="op", name=line.code, model_locations=[place]),
        Fix(
            text="compute all passes at once (stack the weights, and use one batched operation); if a pass "
            "needs the one before, use torch._higher_order_ops.while_loop, or compile the body alone and "
            "call it in a loop",
            before=line.code,
        ),
        context.cost.cost(),
        evidence,
        "only a change of the model could remove it.",
    )


def _told(first: BuildTimed) -> str:
    """Describe the time of the build and of its two largest parts."""
    largest = sorted(first.parts.items(), key=lambda each: -each[1])[:2]
    parts = " and ".join(f"{told(seconds)} in {part}" for part, seconds in largest)
    return f"The build takes {told(first.seconds)}, {parts}."


def _parts_of(first: BuildTimed) -> list[Evidence]:
    parts = {**first.parts, "the test of vector instructions": first.testing, "autotuning": first.tuning}
    facts = [f"{part}: {told(seconds)} ({seconds / first.seconds:.0%})" for part, seconds in parts.items()]
    return [Evidence(step="time_build", fact=fact) for fact in facts]


def _nodes_of(lines: list[TracedLine]) -> list[Evidence]:
    facts = [
        f"{PurePath(line.file).name}:{line.line}: {line.share:.0%} of nodes, {counted(line.times, 'pass')}"
        for line in lines
    ]
    return [Evidence(step="time_build", fact=fact) for fact in facts]


@dataclass(frozen=True)
class _Subject:
    """What a workload provides: its package, the program that it was built from, and that build's options."""

    package: PackageWorkload | None = None
    program: Path | None = None
    configs: dict[str, object] = field(default_factory=dict)
    seen: Capture | None = None


async def diagnose_cost(
    context: Context, workload: Workload | None, exported: Path | None, symptom: CostSymptom, budget_s: float
) -> Verdict:
    """Return a `cost` verdict, or `no_fault` with what was timed. Raise `ProblemError` without a subject."""
    subject = await _subject(context, workload, exported)
    if symptom == "slow-build":
        if subject.program is None or workload is None:
            raise ProblemError("timing a build needs the exported program", allowed="exported, or script")
        return await diagnose_build(context, workload, subject.program, subject.configs, budget_s=budget_s)
    if subject.package is None:
        raise ProblemError("this symptom is about a package", allowed="package with inputs, or script")
    loads, took = loaded_often(subject.seen) if subject.seen is not None else ([], "")
    if symptom == "slow-load":
        found = await diagnose_load(context, subject.package)
        shared = [f"{counted(len(loads), 'load')} of one package: {LOAD_ONCE}."] if loads else []
        return found.model_copy(update={"remarks": [*found.remarks, *shared]})
    if took:
        path = str(loads[0].package)
        party = Component(kind="script", name=path, model_locations=loads[-1].stack[:1])
        words = ("the package is loaded again and again", f"{took}.", party, Fix(text=LOAD_ONCE))
        return loss(*words, context.cost.cost(), (), "only a change of the program could remove it.")
    return await diagnose_call(context, subject.package, subject.program, budget_s=budget_s)


async def _subject(context: Context, workload: Workload | None, exported: Path | None) -> _Subject:
    """Find what to time: of a script, the last call and build. Raise `ProblemError` if there is none."""
    if isinstance(workload, PackageWorkload):
        return _Subject(workload, exported)
    if isinstance(workload, ExportedWorkload):
        return _Subject(None, workload.exported)
    if not isinstance(workload, ScriptWorkload):
        raise ProblemError("this symptom is about a package", allowed="package with inputs, or script")
    seen = await capture(context, workload)
    call, builds = suspect_call(seen), [each for each in seen.compiles if each.exported]
    package = None
    if call is not None and call.inputs is not None:
        around = workload.model_dump(include={"cwd", "env", "python", "timeout_s"})
        package = PackageWorkload(package=call.package, inputs=call.inputs, **around)
    if package is None and not builds:
        raise ProblemError(
            "the script builds no package and calls none",
            value=str(workload.script),
            allowed="package and inputs",
        )
    exported, configs = (builds[-1].exported, builds[-1].configs) if builds else (None, {})
    return _Subject(package, exported, configs, seen)


PAIRS = 3
WITHOUT_TEST = Lever(
    f"with {ISA_OK}=1",
    "set the variable on machines like the one that the package was built for",
    f"{ISA_OK}=1",
    "the instructions are no longer tested, so a package for others is loaded, too",
)


async def diagnose_load(context: Context, workload: PackageWorkload) -> Verdict:
    """Time loads with and without the test in turn, each in its own process. May raise `ProblemError`."""
    plain: list[float] = []
    changed: list[float] = []
    request = {"package": str(workload.package), "model_name": workload.model_name}
    for _ in range(PAIRS):
        for found, value in ((plain, ""), (changed, "1")):
            env, unset = ({ISA_OK: value}, ()) if value else ({}, (ISA_OK,))
            run = await context.worker("time_load", request, env=env, unset=unset, workload=workload)
            event = run.last(LoadedIn)
            if event is None:
                raise ProblemError(f"the package could not be loaded: {run.why}")
            found.append(event.seconds)
    ratios = sorted(a / b for a, b in zip(plain, changed, strict=True))
    usual, quick = (told(sorted(each)[PAIRS // 2]) for each in (plain, changed))
    middle = f"The load takes {usual}, {quick} with {ISA_OK}=1"
    if ratios[0] < LEAST_WIN:
        return no_loss(f"{middle}: no change saved time.", context.cost.cost())
    faster = f"{ratios[PAIRS // 2]:.1f} times as fast"
    win = Win(WITHOUT_TEST, plain[0], changed[0], plain[1], faster, "load")
    summary = f"{middle}: torch compiles a test of the vector instructions when it loads a package."
    party = Component(kind="environment", name=ISA_OK)
    return loss("the load compiles a test of the processor", summary, party, win, context.cost.cost())
