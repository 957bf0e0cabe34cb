"""`--symptom slow`, `slow-load`, `slow-build`: nothing fails, but a call, a load or a build takes too long.

For a build, finds the slowest part, and builds without it.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePath

import anyio.to_thread

from mcp_server.cost.call import Built, diagnose_call
from mcp_server.cost.signals import ISA_OK, LEAST_WIN, Lever, Win, loss, no_loss, told
from mcp_server.diagnosis.causes.wrong_output import LOAD_ONCE, loaded_often
from mcp_server.diagnosis.kept_files import with_subject
from mcp_server.diagnosis.next_steps import workload_arguments
from mcp_server.diagnosis.observe.program import PROVENANCE, suspect_call
from mcp_server.errors import ProblemError, argument
from mcp_server.logs.captured import CapturedAttempts, CapturedCall, CapturedLoad
from mcp_server.model import (
    Component,
    CostSymptom,
    Evidence,
    ExportedWorkload,
    Fix,
    ModelLocation,
    NextStep,
    PackageWorkload,
    ScriptWorkload,
    Verdict,
    Workload,
    WorkloadBase,
)
from mcp_server.package.view import PackageView, view_package
from mcp_server.plurals import capitalized, counted
from mcp_server.runtime.context import Context
from mcp_server.tools.capture import Capture, capture
from mcp_server.worker.events import BuildTimed, LinesTraced, LoadedIn, TracedLine

OF_PROCESSORS = " of processor time"  # unlike wall time, it does not depend on other processes
LEAST_SHARE = 0.2  # of a build; smaller parts are not worth a change
CACHE = "TORCHINDUCTOR_CACHE_DIR"
TUNING = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")


async def diagnose_build(
    context: Context,
    workload: WorkloadBase,
    program: Path,
    configs: dict[str, object],
    *,
    budget_s: float,
    empty_cache: bool,
    imports: Sequence[str] = (),
    rolled: CapturedAttempts | None = None,
) -> Verdict:
    """Build with an empty cache, then without the slowest part. Raise `ProblemError` if the build fails.

    `empty_cache`: the user's build had an empty cache, too. Otherwise its cache had the results of the tests
    of vector instructions.
    """
    build = _Build(context, workload, program, budget_s, imports)
    first = await build.timed(configs)
    cost, lines = context.cost.cost, build.lines
    loops = [each for each in lines if each.unrolled]
    rewritten = _without_loop(loops, configs, rolled)
    if first is None:
        return _unended(context, build, loops, rewritten)
    evidence = [*_parts_of(first), *_nodes_of(lines)]
    changes = [*rewritten, *_changes(first, configs, build.cache if empty_cache else None)]
    for change in changes:
        build.cut = context.cost.clock.left_s < 2 * first.seconds
        win = await build.without(first, configs, change) if not build.cut else None
        if win is not None:
            what = win.lever.what
            then = f"{capitalized(what)}, it takes {told(win.after)}{win.unit}."
            summary = f"{_told(first)} {change.why} {then}"
            return loss(change.headline, summary, change.party, win, cost(), evidence)
        if build.cut:
            needed = math.ceil(1.2 * (context.cost.clock.worked_s + 2 * first.seconds))
            why = f"that takes two more builds, so give --budget-s {needed} or more."
            summary = f"{_told(first)} {change.why}"
            return loss(change.headline, summary, change.party, change.fix, cost(), evidence, why)
    if loops and not rewritten:
        return _unrolled(context, _told(first), loops[0], evidence)
    known = "".join(
        f" {change.why} {capitalized(change.lever.what)}, no time was saved." for change in rewritten
    )
    said = f"{_told(first)}{known} {_without_loss(first, bool(changes))}"
    return no_loss(said, cost(), evidence, "inconclusive" if known else "no_fault")


def _without_loss(first: BuildTimed, tried: bool) -> str:
    """Say that nothing saves time. Time that an empty cache adds is not part of the user's build."""
    said = "No change saved time." if tried else "No part of it can be left out."
    if first.testing < LEAST_SHARE * first.seconds:
        return said
    tests = f"{told(first.testing)} of it went to tests of the vector instructions"
    return f"{said} The cache was empty: {tests}. A {CACHE} that is kept from build to build saves this time."


@dataclass(frozen=True)
class _Change:
    """A changed build that omits a part: other options, variables, or another program."""

    party: Component
    headline: str
    why: str
    lever: Lever
    configs: dict[str, object]
    env: dict[str, str] = field(default_factory=dict)
    program: Path | None = None

    @property
    def fix(self) -> Fix:
        return Fix(text=self.lever.fix, after=self.lever.code)


def _changes(first: BuildTimed, configs: dict[str, object], cache: str | None) -> list[_Change]:
    """List the changes that omit at least a fifth of the build, the largest first.

    `cache`: the cache that the first build filled, if the user's builds begin with an empty one.
    """
    tuned = [name for name in TUNING if configs.get(name)]
    rows = []
    if tuned:
        listed = ", ".join(tuned)
        change = _Change(
            Component(kind="environment", name=tuned[0]),
            "autotuning takes most of the build",
            f"Autotuning takes {told(first.tuning)}.",
            Lever(
                f"without {listed}",
                f"compile without {listed}, or keep the results of autotuning in {CACHE}",
                note="kernels are no longer autotuned",
            ),
            {name: value for name, value in configs.items() if name not in tuned},
        )
        rows.append((first.tuning, change))
    change = _Change(
        Component(kind="environment", name=CACHE),
        "each build starts with an empty cache",
        f"{CACHE} is an empty folder at first: tests of the processor alone take {told(first.testing)}.",
        Lever(
            "with the cache of the build before",
            f"set {CACHE} to a folder that stays, or leave it out",
            f"{CACHE}=/path/of/a/folder/that/stays",
        ),
        configs,
        {CACHE: cache or ""},
    )
    if cache is not None:  # its tests and headers; of the rest, only a build shows what it saves
        rows.append((max(first.testing, LEAST_SHARE * first.seconds), change))
    rows.sort(key=lambda each: -each[0])
    return [change for seconds, change in rows if seconds >= LEAST_SHARE * first.seconds]


class _Build:
    """Builds of one program, each in a process with an empty compile cache."""

    def __init__(
        self, context: Context, workload: WorkloadBase, program: Path, budget_s: float, imports: Sequence[str]
    ) -> None:
        self.imports = list(imports)
        self.limit = min(workload.timeout_s, budget_s)
        self.context, self.program, self.workload = context, program, workload
        self.lines: list[TracedLine] = []
        self.cut = False  # whether a build did not end in time
        self.cache = ""  # of the first build

    async def timed(
        self, configs: dict[str, object], env: Mapping[str, str] | None = None, program: Path | None = None
    ) -> BuildTimed | None:
        """Time one build. None if it does not end in time. Raise `ProblemError` if it fails."""
        folder = self.context.fresh("build")
        request = {
            "exported": str(program or self.program),
            "package_path": str(folder / "model.pt2"),
            "inductor_configs": configs,
            "extra_imports": self.imports,
        }
        around = {CACHE: str(folder / "cache"), **(env or {})}
        self.cache = self.cache or around[CACHE]
        unset = () if ISA_OK in around else (ISA_OK,)
        run = await self.context.worker(
            "time_build", request, env=around, unset=unset, workload=self.workload
        )
        traced, found = run.last(LinesTraced), run.last(BuildTimed)
        self.lines = self.lines or (traced.lines if traced is not None else [])
        self.cut = found is None
        if found is None and run.finished.ending != "timeout":
            raise ProblemError(
                f"the build could not be timed: {run.why} ({run.phase.replace('_', ' ')})",
                value=str(self.program),
                allowed="a program that compiles; without symptom, its failure is diagnosed",
            )
        return found

    async def without(self, first: BuildTimed, configs: dict[str, object], change: _Change) -> Win | None:
        """Time the changed build and the original again. None if the change saved no time."""
        second = await self.timed(change.configs, change.env, change.program)
        if second is None or first.cpu / second.cpu < LEAST_WIN:
            return None
        third = await self.timed(configs)
        if third is None or third.cpu / second.cpu < LEAST_WIN:
            return None
        faster = f"at least {min(first.cpu, third.cpu) / second.cpu:.1f} times as fast"
        return Win(change.lever, first.cpu, second.cpu, third.cpu, faster, "build", unit=OF_PROCESSORS)


def _unended(context: Context, build: _Build, loops: list[TracedLine], rewritten: list[_Change]) -> Verdict:
    """Report a build that did not end in time. Its trace may show an unrolled loop, but not the times."""
    summary, evidence = f"The build did not end within {build.limit:g} s.", _nodes_of(build.lines)
    if loops:
        return _unrolled(context, summary, loops[0], evidence, *(each.fix for each in rewritten))
    advice = "The parts are known only after a build that ends: use a higher --budget-s and --timeout-s."
    return no_loss(f"{summary} {advice}", context.cost.cost(), evidence, "inconclusive")


def _without_loop(
    loops: list[TracedLine], configs: dict[str, object], rolled: CapturedAttempts | None
) -> list[_Change]:
    """One rewrite of an unrolled loop with which the export passed, if any."""
    if rolled is None:
        return []
    tried = [each for each in rolled.attempts if each.outcome == "passes"]
    found = [(loop, each) for each in tried for loop in loops if loop.line == each.line]
    note = "a pass is not fused with the next one: time a call, too"
    return [
        _Change(
            *_of_loop(loop),
            Lever("with the rewritten loop", f"{each.action}: with it the export passes", each.after, note),
            configs,
            program=rolled.file,
        )
        for loop, each in found[:1]
    ]


def _of_loop(line: TracedLine) -> tuple[Component, str, str]:
    """Component, headline and reason for a Python loop, each pass of which becomes separate code."""
    place = ModelLocation(file=line.file, line=line.line, code=line.code)
    times = f"{PurePath(line.file).name}:{line.line} was traced {line.times} times"
    party = Component(kind="op", name=line.code, model_locations=[place])
    why = f"{times}, and makes {line.share:.0%} of the graph: a Python loop is unrolled."
    return party, "a loop is compiled once for each pass", why


def _unrolled(
    context: Context, took: str, line: TracedLine, evidence: list[Evidence], *rewrites: Fix
) -> Verdict:
    """Report an unrolled loop that was not timed, with the first rewrite, or advice if there is none."""
    party, headline, why = _of_loop(line)
    advice = Fix(
        text="compute all passes at once (stack the weights, and use one batched operation); if a pass "
        "needs the one before, use torch._higher_order_ops.while_loop, or compile the body alone and "
        "call it in a loop",
        before=line.code,
    )
    fix, unproven = next(iter(rewrites), advice), "no build with a changed loop was timed."
    return loss(headline, f"{took} {why}", party, fix, context.cost.cost(), evidence, unproven)


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
    """The parts of a workload that can be timed: its package, its exported program, and its build options."""

    package: PackageWorkload | None = None
    program: Path | None = None
    configs: dict[str, object] = field(default_factory=dict)
    seen: Capture | None = None
    threads: int = 0


def _without_package() -> ProblemError:
    return ProblemError("nothing here can be timed", allowed="a package with inputs, or a script")


async def diagnose_cost(
    context: Context, workload: Workload | None, exported: Path | None, symptom: CostSymptom, budget_s: float
) -> Verdict:
    """A `cost` or `no_fault` verdict with the times. Raises `ProblemError` if nothing can be timed."""
    verdict = await _largest_cost(context, workload, exported, symptom, budget_s)
    return with_subject(verdict, workload, context)


async def _largest_cost(
    context: Context, workload: Workload | None, exported: Path | None, symptom: CostSymptom, budget_s: float
) -> Verdict:
    env = {"AOTI_DEBUG_LOOPS": "1"} if symptom == "slow-build" else {}
    env["AOTI_DEBUG_UNTIL"] = str(time.time() + SHARE_OF_PROGRAM * budget_s)  # later loops are not rewritten
    context.cost.clock.ends_s = budget_s
    subject = await _subject(context, workload, exported, env)
    if symptom == "slow-build":
        return await _cost_of_build(context, workload, subject, budget_s)
    if subject.package is None:
        raise _without_package()
    loads, took = loaded_often(subject.seen) if subject.seen is not None else ([], "")
    if symptom == "slow-load":
        return await diagnose_load(context, subject, loads)
    if subject.seen is not None and (again := _compiled_again(subject.seen)):
        took, line = again
        party = Component(kind="script", name="compiles", model_locations=[line])
        words = ("the model is compiled again and again", took, party, Fix(text=COMPILE_ONCE))
        return loss(*words, context.cost.cost(), (), OF_PROGRAM)
    if took:
        return loss(*_loaded_again(loads, f"{took}."), context.cost.cost(), (), OF_PROGRAM)
    built = Built(subject.program, subject.configs, subject.threads)
    found, seconds = await diagnose_call(context, subject.package, built, budget_s=budget_s)
    return _with_rest(found, seconds, subject.seen, loads, context) if subject.seen is not None else found


async def _cost_of_build(
    context: Context, workload: Workload | None, subject: _Subject, budget_s: float
) -> Verdict:
    """The verdict on a slow build, with a next step unless the answer is settled."""
    if subject.program is None or workload is None:
        what = "timing a build needs a program to build, and none was found"
        allowed = f"{argument('exported')}, or a script that exports and compiles the model"
        raise ProblemError(what, allowed=allowed)
    compiles, attempts = (
        (subject.seen.compiles, subject.seen.attempts) if subject.seen is not None else ([], [])
    )
    found = await diagnose_build(
        context,
        workload,
        subject.program,
        subject.configs,
        budget_s=budget_s,
        empty_cache=any(each.empty_cache for each in compiles),
        imports=getattr(subject.package or workload, "extra_imports", ()),
        rolled=next((each for each in attempts if each.stage == "loop"), None),
    )
    if found.confidence == "proven" or found.outcome == "no_fault":
        return found
    limit = min(86_400.0, 4 * budget_s)
    more = {**workload_arguments(workload), "symptom": "slow-build", "budget_s": limit, "timeout_s": limit}
    why = "measure again after the change, or with more time"
    return found.model_copy(update={"next_steps": [NextStep(why=why, tool="diagnose", arguments=more)]})


def _with_rest(
    found: Verdict, seconds: float, seen: Capture, loads: Sequence[CapturedLoad], context: Context
) -> Verdict:
    """The verdict on a call that takes `seconds`, or on the program if its loads or own code take longer."""
    called, loading = len(seen.calls), sum(load.seconds or 0.0 for load in loads)
    if loading > called * seconds:  # more than any change of the call could save
        took = f"{counted(len(loads), 'load')} of {loads[0].package.name} took {told(loading)}, and "
        took += f"{counted(called, 'call')} {told(seconds)} each. {found.summary}"
        return loss(*_loaded_again(loads, took), context.cost.cost(), found.evidence, OF_PROGRAM)
    around = _between_calls(seen, seconds)
    if around is None:
        return found
    if found.outcome != "no_fault":
        return found.model_copy(update={"remarks": [*found.remarks, around[1]]})
    return loss(*around, context.cost.cost(), found.evidence, OF_PROGRAM)


_Words = tuple[str, str, Component, Fix]  # headline, summary, party and fix


def _loaded_again(loads: Sequence[CapturedLoad], took: str) -> _Words:
    party = Component(kind="script", name=str(loads[0].package), model_locations=loads[-1].stack[:1])
    return "the package is loaded again and again", took, party, Fix(text=LOAD_ONCE)


def _between_calls(seen: Capture, seconds: float) -> _Words | None:
    """A loss if the program's own code between calls takes longer than the calls."""
    calls = calls_in_turn(seen.calls)
    own, each = len(calls) * seconds, f"{counted(len(calls), 'call')} of {told(seconds)}"
    gaps = (after.began_cpu - before.ended_cpu for before, after in pairwise(calls))
    outside = max(sum(gaps), 0.0)  # processor seconds of the thread, without those of the hook
    if not calls or outside < LEAST_OUTSIDE * (own + outside):
        return None
    took = f"Between {each}, the program itself took {told(outside)} of processor time."
    party = Component(kind="script", name="between the calls", model_locations=calls[-1].stack[:1])
    return "the time is spent between the calls", took, party, Fix(text=PROFILE)


OF_PROGRAM = "to test this, the program itself would have to be changed."
LEAST_CALLS = 8
LEAST_COMPILES = 3
LEAST_OUTSIDE = 0.6  # of the calls and the time between them
PROFILE = "profile the program (python -m cProfile -s cumtime): its own code around this line takes the time"
COMPILE_ONCE = (
    "compile once, before the first request, with dynamic_shapes for the sizes that change, "
    "and keep the package"
)


def _compiled_again(seen: Capture) -> tuple[str, ModelLocation] | None:
    """The compile times in words, and the line that compiled several times. None if the calls took longer."""
    lines = [each.location for each in seen.compiles if each.location is not None]
    line = max(lines, key=lines.count, default=None)
    took = sum(each.seconds or 0.0 for each in seen.compiles if each.location == line)
    calling = sum(each.seconds or 0.0 for each in seen.calls)
    if line is None or lines.count(line) < LEAST_COMPILES or took < calling:
        return None
    calls = counted(len(seen.calls), "call")
    return f"{lines.count(line)} compiles took {told(took)}, and {calls} {told(calling)}.", line


def calls_in_turn(calls: Sequence[CapturedCall]) -> list[CapturedCall]:
    """The calls of the thread that made the last call. Empty if they are few."""
    last = calls[-1] if calls else None
    found = [
        each for each in calls if last is not None and (each.pid, each.thread) == (last.pid, last.thread)
    ]
    return found if len(found) >= LEAST_CALLS else []


async def _subject(
    context: Context, workload: Workload | None, exported: Path | None, env: Mapping[str, str]
) -> _Subject:
    """Find what to time: a script's suspect call and last build. Raise `ProblemError` if there is nothing."""
    if isinstance(workload, PackageWorkload):
        return _Subject(workload, exported)
    if isinstance(workload, ExportedWorkload):
        return _Subject(None, workload.exported)
    if not isinstance(workload, ScriptWorkload):
        raise _without_package()
    around = {PROVENANCE: workload.env.get(PROVENANCE, "1"), **env}
    seen = await capture(context, workload, env=around)
    call, builds = suspect_call(seen), [each for each in seen.compiles if each.exported]
    package = None
    if call is not None and call.inputs is not None:
        own = workload.model_dump(include={"cwd", "env", "python", "timeout_s"})
        imports = [str(name) for name in call.request.get("extra_imports", ())]  # for custom operators
        package = PackageWorkload(package=call.package, inputs=call.inputs, extra_imports=imports, **own)
    if package is None and not builds:
        raise ProblemError(
            "the script builds no package and calls none",
            value=str(workload.script),
            allowed="package and inputs",
        )
    exported, configs = (builds[-1].exported, builds[-1].configs) if builds else (None, {})
    threads = next((each.threads for each in reversed(seen.calls)), 0)
    return _Subject(package, exported, configs, seen, threads)


SHARE_OF_PROGRAM = 0.5  # of the budget
ROUNDS = 3
# Seconds of processor time. The test takes 1 to 2 s in every process, and more with an empty cache.
LEAST_TEST_S = 3.0
LEAST_SAVED_S = 0.2  # processor time that loading weights from outside the package must save
LARGE_WEIGHTS = 64 << 20  # bytes
MOST_OF_WEIGHTS = 0.5
WITHOUT_TEST = Lever(
    f"with {ISA_OK}=1",
    "set the variable on machines like the one that the package was built for",
    f"{ISA_OK}=1",
    "the instructions are no longer tested, so a package for others is loaded, too",
)
OUTSIDE = {"aot_inductor.package_constants_in_so": False}
WEIGHTS_OUTSIDE = Lever(
    "with the weights outside of the package",
    "compile without the weights, and give the package those that the program has or maps from a file",
    f"inductor_configs={OUTSIDE}\n"
    "weights = torch.load(file, mmap=True)\n"
    "loader.load_constants(weights, check_full_update=True, user_managed=True)",
    "the weights must live as long as the loader, and are read from the file when a call first uses them",
)


@dataclass(frozen=True)
class _Way:
    """A way to load: its request, and the variables of its process."""

    name: str
    request: dict[str, object]
    env: dict[str, str] = field(default_factory=dict)


async def diagnose_load(context: Context, subject: _Subject, loads: Sequence[CapturedLoad]) -> Verdict:
    """Time the load in each way by turns, each in a new process."""
    workload = subject.package
    assert workload is not None
    request: dict[str, object] = {"package": str(workload.package), "model_name": workload.model_name}
    ways = [_Way("as it is", request), _Way(f"with {ISA_OK}=1", request, {ISA_OK: "1"})]
    if subject.program is not None and workload.package.stat().st_size >= LARGE_WEIGHTS:
        ways += await _without_weights(context, workload, subject)
    times: dict[str, list[LoadedIn]] = {way.name: [] for way in ways}
    for number in range(ROUNDS):
        context.progress(f"round {number + 1} of {ROUNDS}: timing the load {len(ways)} times")
        for way in ways:
            unset = () if way.env else (ISA_OK,)
            run = await context.worker("time_load", way.request, env=way.env, unset=unset, workload=workload)
            event = run.last(LoadedIn)
            if event is None:
                raise ProblemError(f"the package could not be loaded: {run.why}")
            times[way.name].append(event)
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    large = workload.package.stat().st_size >= LARGE_WEIGHTS
    return _of_loads(context, list(times.values()), loads, _most_of(view) if large else "")


def _most_of(view: PackageView) -> str:
    """A sentence on the constant that has most of the weights. Empty if none has half of them."""
    whole = sum(each.bytes for each in view.package.constants)
    largest = max(view.package.constants, key=lambda each: each.bytes, default=None)
    if largest is None or largest.bytes < MOST_OF_WEIGHTS * whole:
        return ""
    return (
        f" {largest.bytes / whole:.0%} of the weights are {largest.fqn} {list(largest.shape)}: if the model "
        "uses only a part of it, or can compute it, export the model without the rest."
    )


async def _without_weights(context: Context, workload: PackageWorkload, subject: _Subject) -> list[_Way]:
    """Build the package without its weights. Return how to load it; empty if it does not compile."""
    out = context.fresh("without-weights")
    package, weights = out / "model.pt2", out / "weights.pt"
    request = {
        "exported": str(subject.program),
        "package_path": str(package),
        "weights_file": str(weights),
        "extra_imports": workload.extra_imports,
        "inductor_configs": {**subject.configs, **OUTSIDE},
    }
    with suppress(ProblemError):
        await context.worker("compile_changed", request, workload=workload)
    given: dict[str, object] = {"package": str(package), "weights": str(weights)}
    return [_Way(WEIGHTS_OUTSIDE.what, given, {ISA_OK: "1"})] if package.exists() else []


def _of_loads(
    context: Context, times: list[list[LoadedIn]], loads: Sequence[CapturedLoad], most: str
) -> Verdict:
    """The largest loss: repeated loads, the test of the processor, or the weights."""
    plain, quick, *rest = times
    usual, without = (told(_middle(each)) for each in (plain, quick))
    said = f"The load takes {usual} of processor time, {without} with {ISA_OK}=1"
    cost, found = context.cost.cost(), []
    test = _middle(plain) - _middle(quick)
    if test >= LEAST_TEST_S and _ratio(plain, quick) >= LEAST_WIN:
        summary = f"{said}: torch compiles a test of the vector instructions when it loads a package."
        times_of_it = plain[0].cpu, quick[0].cpu, plain[1].cpu, _faster(plain, quick)
        win = Win(WITHOUT_TEST, *times_of_it, "load", unit=OF_PROCESSORS)
        party = Component(kind="environment", name=ISA_OK)
        found.append((test, loss("the load compiles a test of the processor", summary, party, win, cost)))
    for outside in rest:
        saved = _middle(quick) - _middle(outside)
        if saved >= LEAST_SAVED_S and _ratio(quick, outside) >= LEAST_WIN:
            summary = f"{said}, and {told(_middle(outside))} {WEIGHTS_OUTSIDE.what}: a load copies them."
            faster = _faster(quick, outside)
            times_of_it = quick[0].cpu, outside[0].cpu, quick[1].cpu, faster
            win = Win(WEIGHTS_OUTSIDE, *times_of_it, "load", unit=OF_PROCESSORS)
            party = Component(kind="package", name="weights")
            found.append((saved, loss("each load copies the weights", summary, party, win, cost)))
    again = sum(load.seconds or 0.0 for load in loads[1:])
    if again:
        summary = f"The program loads one package {len(loads)} times: {told(again)} after the first load. "
        party = Component(kind="script", name=loads[-1].package.name, model_locations=loads[-1].stack[:1])
        words = ("the package is loaded several times", summary + f"{said}.", party, Fix(text=LOAD_ONCE))
        found.append((again, loss(*words, cost, (), OF_PROGRAM)))
    if not found:
        return no_loss(f"{said}. No change saves {told(LEAST_TEST_S)} or more in each process.{most}", cost)
    found.sort(key=lambda each: -each[0])
    best, others = found[0][1], [each for _, each in found[1:]]
    fixes = [(each.headline, each.fix.text) for each in others if each.fix is not None]
    more = [f"Also: {headline}. {capitalized(fix)}." for headline, fix in fixes]
    return best.model_copy(update={"remarks": [*best.remarks, *more]})


def _middle(times: Sequence[LoadedIn]) -> float:
    return sorted(each.cpu for each in times)[ROUNDS // 2]


def _ratio(before: Sequence[LoadedIn], after: Sequence[LoadedIn]) -> float:
    """The smallest ratio of time before to time after, of any pair."""
    return min(a.cpu / max(b.cpu, 1e-3) for a, b in zip(before, after, strict=True))


def _faster(before: Sequence[LoadedIn], after: Sequence[LoadedIn]) -> str:
    return f"{_middle(before) / max(_middle(after), 1e-3):.1f} times as fast"
