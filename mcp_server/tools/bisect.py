"""`bisect`: finds the compiler decision that makes a program fail, and a workaround."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio

from mcp_server.errors import ProblemError
from mcp_server.logs.families import BY_ID
from mcp_server.model import Artifact, ExportedWorkload, ScriptWorkload
from mcp_server.plurals import quoted
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.runtime.failure import read_failure
from mcp_server.tools.capture import Capture
from mcp_server.tools.failing import (
    Failing,
    Result,
    failing_program,
    result_of_attempt,
    run_worker,
    try_script,
)
from mcp_server.tools.reduce import SCRIPT, Reduced, reduce_program
from mcp_server.tools.switches import (
    TIMED,
    Bisected,
    Compile,
    Decision,
    Experiment,
    Kind,
    Names,
    Wave,
    Workaround,
    comes_from,
    fewest,
    most_children,
    price,
    switched,
    switches_of,
    try_options,
    workaround_lines,
)
from mcp_server.worker import events, protocol

REDUCE_SHARE = 0.5  # of the budget; a smaller program makes every experiment cheaper
# From the most specific to the least: a decomposition also changes what is fused.
KINDS: tuple[Kind, ...] = ("pass", "lowering", "decomposition")
SINGLE_PASSES = ("disabled_passes",)


async def bisect(
    context: Context,
    workload: ExportedWorkload | ScriptWorkload,
    *,
    budget_s: float = 600,
    seen: Capture | None = None,
    tried: Bisected | None = None,
) -> Bisected:
    """Compile the failing program with careful options, then a smaller one with decisions switched off.

    The second step runs only if no option helps. A decision is named only if the failure disappeared without
    it and returned with it. A workaround that helps the reduced program is tried on the whole one. `seen` is
    a captured run of the script, which is then not run again; `tried` is what `try_options` found. Raise
    ProblemError if one compile shows no failure, or one run in eager mode shows that the compiler is not to
    blame.
    """
    async with context.sharing_imports():
        failing = await failing_program(context, workload, TIMED, seen)
        if tried is None:
            await refuse_others_faults(context, failing)
            tried = await try_options(context, failing, switches_of(failing))
        context.progress("making the program smaller")
        reduced = await reduce_program(context, failing, budget_s * REDUCE_SHARE)
        if tried.outcome != "not_found":
            return _reported(context, failing, tried, reduced)
        if reduced.outcome != "reduced":
            raise ProblemError(
                "no option of the compiler makes the failure disappear, and no smaller program fails in the "
                f"same way, so there is nothing to bisect: {reduced.summary}",
                value=str(failing.target.workload.exported),
                next_call="reduce, or compare_with_eager",
            )
        context.progress("switching compiler passes off, one kind after another")
        search = Search(context, failing, _script(reduced.files), {node.operator for node in reduced.nodes})
        with anyio.move_on_after(budget_s):
            search.reason = await search.run()
        workaround = await _workaround(context, failing, search)
    return _reported(context, failing, _result(context, tried, reduced, search, workaround), reduced)


async def refuse_others_faults(context: Context, failing: Failing) -> None:
    """Run the program once in eager mode. Raise `ProblemError` if it fails there in the same way.

    Also raise it if the program's guards reject the inputs, or a tool or the machine broke the compile.
    """
    family, next_call = BY_ID.get(failing.failure.family), "check_devices"
    reason = ""
    if failing.failure.phase == "compiling" and family and "compile_failure" not in family.candidates:
        reason = f"{family.meaning} ({failing.failure.text})"
    else:
        eager = await run_worker(context, "interpret", failing.target)
        reason, next_call = of_eager(failing, eager), "diagnose"
    if reason:
        raise ProblemError(
            f"the failure is not the compiler's fault, so no compiler pass is to blame: {reason}",
            value=str(failing.failure),
            allowed="a program that runs well in eager mode on these inputs",
            next_call=next_call,
        )


def of_eager(failing: Failing, eager: WorkerRun) -> str:
    """How eager mode shows that the compiler is not to blame. Empty if it does not."""
    guard = eager.last(events.GuardFailed)
    if guard is not None:
        return f"the inputs are not what the program was exported for: {quoted(guard.text)}"
    failure = failing.failure
    if failure.phase == "compiling":  # a compile needs no inputs, so they cannot be the reason
        return ""
    interpreted, ended = eager.last(events.Interpreted), read_failure(eager.finished)
    if interpreted is None and ended is not None and failure.kind in ("crash", "error"):
        node = eager.last(events.NodeRaised)
        where = f" in {node.op}" if node is not None else ""
        return f"eager mode fails on these inputs, too{where}: {quoted(ended.text)}"
    called = failing.attempt.last(events.Called)
    if failure.kind == "not_finite" and interpreted is not None and called is not None:
        bad, in_eager = (
            ", ".join(
                f"output {place}: {each.nan or 0} NaN, {each.inf or 0} infinite"
                for place, each in enumerate(event.outputs)
            )
            for event in (called, interpreted)
        )
        if bad == in_eager:
            return f"eager mode gives the same non-finite values ({bad})"
    return ""


@dataclass
class Search:
    """Switches off all decisions of a kind, one kind after another, in a small program with `operators`.

    The first kind without which the failure disappears is narrowed down. `listed` are the decisions that were
    taken, by kind and key; `named` are those behind the failure.
    """

    context: Context
    failing: Failing
    script: Path
    operators: set[str]
    reason: str = "the time limit was reached (budget_s)"
    listed: dict[Kind, dict[str, events.Decision]] = field(default_factory=dict)
    waves: dict[Kind, Wave] = field(default_factory=dict)
    named: list[events.Decision] = field(default_factory=list)
    single_passes: bool = False

    async def run(self) -> str:
        """Why nothing was found. Empty if a decision was found."""
        self.waves = {kind: Wave(self._compile(kind), f"without {kind}: {{}}") for kind in KINDS}
        taken = self.waves["pass"]
        if await taken.run([()]) != ["same"]:
            return "the reproduction did not fail again"
        self.single_passes = bool(switched(taken.runs, SINGLE_PASSES))
        self._list(taken.runs[()])
        for kind, wave in self.waves.items():
            names = tuple(self.listed[kind])
            found = await fewest(names, (), most_children(), wave.run) if names else ()
            if found:
                self.named = [self.listed[kind][name] for name in found]
                break
        if not self.named:
            return "the failure stays whatever option, pass, decomposition or lowering is switched off"
        if await taken.run([()]) != ["same"]:
            return "the failure did not return when everything was switched on again"
        return ""

    def _compile(self, kind: Kind) -> Compile:
        async def compile_without(names: Names) -> tuple[Result, WorkerRun]:
            return await try_script(self.context, self.failing, self.script, {"off": {kind: names}})

        return compile_without

    def _list(self, run: WorkerRun) -> None:
        self.listed = {kind: {} for kind in KINDS}
        for decision in run.all(events.Decision):
            # The compiler also traces its own patterns, with operators that the program does not have.
            names = {decision.op, decision.op.rpartition(".")[0]}
            if decision.kind == "decomposition" and not names & self.operators:
                continue
            if decision.kind == "lowering" and decision.op.startswith("prims."):
                continue  # prims have no eager form to fall back to
            self.listed[cast(Kind, decision.kind)][decision.key] = decision

    @property
    def experiments(self) -> list[Experiment]:
        return [seen for wave in self.waves.values() for seen in wave.seen]

    @property
    def workaround(self) -> protocol.Workaround | None:
        """The code that a user can write before the compile. None if torch has no option for it."""
        if not self.named:
            return None
        if self.named[0].kind == "pass":
            names = sorted({each.key.partition("#")[0].upper() for each in self.named})
            return {"configs": {"disabled_passes": ",".join(names)}} if self.single_passes else None
        operators = sorted({each.op for each in self.named})
        return {"fallbacks": operators} if self.named[0].kind == "lowering" else {"decompositions": operators}


async def _workaround(context: Context, failing: Failing, search: Search) -> Workaround | None:
    """Try the workaround in the reduced program, then in the whole one."""
    asked = search.workaround
    if asked is None:
        return None
    context.progress("trying the workaround on the whole program")
    reduced, _ = await try_script(context, failing, search.script, {"workaround": asked})
    trial = await run_worker(context, "attempt", failing.target, {"workaround": asked, **TIMED})
    return Workaround(
        code=workaround_lines(asked),
        reduced=reduced,
        whole=result_of_attempt(trial, failing.failure),
        price=price(failing.attempt, trial),
    )


def _result(
    context: Context, tried: Bisected, reduced: Reduced, search: Search, workaround: Workaround | None
) -> Bisected:
    """Join what the options showed with what the search in the smaller program found."""
    failure, decisions = tried.failure, _decisions(search, reduced)
    found = bool(decisions) and not search.reason
    summary = f"No compiler pass was found to cause the failure ({failure}): {search.reason}."
    if found:
        rewrites = [f" ({', '.join(each.rewrites)})" if each.rewrites else "" for each in decisions]
        names = [(each.operator or each.name) + by for each, by in zip(decisions, rewrites, strict=True)]
        summary = comes_from(failure, decisions[0].kind, names)
    notes = []
    if decisions and search.workaround is None:
        notes.append("this release of torch has no option that switches a single pass off (disabled_passes)")
    if workaround is not None and workaround.whole != "gone":
        notes.append("the workaround helps the reduced program, but the whole one has another fault, too")
    return Bisected(
        outcome="decision" if found else "not_found",
        summary=summary,
        failure=failure,
        decisions=decisions,
        workaround=workaround,
        experiments=[*tried.experiments, *search.experiments],
        compiles=tried.compiles + len(search.experiments),
        notes=notes,
        log=tried.log,
        cost=context.cost.cost(),
    )


def _decisions(search: Search, reduced: Reduced) -> list[Decision]:
    """The decisions that were found, each with the model line of its operator."""
    # The outermost frame of the operator's first node.
    lines = {node.operator: node.locations[-1] for node in reversed(reduced.nodes) if node.locations}
    return [
        Decision(
            kind=cast(Kind, each.kind),
            name=each.key,
            operator=each.op,
            location=lines.get(each.op),
            rewrites=list(dict.fromkeys(each.rewrites)),
            change=each.change,
        )
        for each in search.named
    ]


def _reported(context: Context, failing: Failing, found: Bisected, reduced: Reduced) -> Bisected:
    """Add the smaller program, if any, and for a compiler decision a text for PyTorch's tracker."""
    if reduced.outcome != "reduced":
        return found
    update: dict[str, object] = {"reproduction": reduced.files, "cost": context.cost.cost()}
    found = found.model_copy(update=update)
    if found.outcome != "decision":
        return found
    return found.model_copy(update={"report": _issue(context, found, failing.attempt.last(events.Torch))})


def _issue(context: Context, result: Bisected, torch: events.Torch | None) -> Artifact:
    """Write a report for PyTorch's tracker: what happens, the program, versions, what was switched off."""
    script = _script(result.reproduction)
    rows = [f"| {one.label} | {one.result} | {one.seconds} |" for one in result.experiments]
    changed = [line for decision in result.decisions for line in decision.change]
    parts = [
        f"# [AOTInductor] {result.failure}: {', '.join(d.operator or d.name for d in result.decisions)}",
        "### Describe the bug",
        result.summary,
        *(["The pass makes this change in the graph:", _block(changed, "diff")] if changed else []),
        f"Run `python {SCRIPT}`: {result.failure}.",
        _block(script.read_text(encoding="utf-8").splitlines(), "python"),
        "### What was tried",
        "\n".join(["| compiled | failure | seconds |", "|---|---|---|", *rows]),
        *(
            ["### Workaround", _block(result.workaround.code.splitlines(), "python")]
            if result.workaround
            else []
        ),
        "### Versions",
        f"torch {torch.version if torch is not None else ''}",
    ]
    path = context.directory / "issue.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return context.artifact(path, "text for PyTorch's issue tracker")


def _script(files: Sequence[Artifact]) -> Path:
    return next(file.path for file in files if file.path.name == SCRIPT)


def _block(lines: list[str], language: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])
