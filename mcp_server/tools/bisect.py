"""`bisect`: which decision of the compiler makes a program fail, and what to write to work around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.logs.families import BY_ID
from mcp_server.model import Artifact, ExportedWorkload, ScriptWorkload
from mcp_server.package.exported import exported_device
from mcp_server.plurals import quoted
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.runtime.failure import read_failure
from mcp_server.tools.capture import Capture
from mcp_server.tools.reduce.failing import SCRIPT, Reduced
from mcp_server.tools.reduce.reduce import (
    Failing,
    failing_program,
    most_children,
    reduce_program,
    run_worker,
)
from mcp_server.tools.switches import (
    COMES_FROM,
    TIMED,
    Bisected,
    Decision,
    Experiment,
    Kind,
    Outcome,
    Result,
    Workaround,
    price,
    result_of,
    switches_of,
    try_options,
    workaround_lines,
)
from mcp_server.worker import events, protocol

REDUCE_SHARE = 0.5  # of the budget: a smaller program makes every experiment cheaper


async def bisect(
    context: Context,
    workload: ExportedWorkload | ScriptWorkload,
    *,
    budget_s: float = 600,
    seen: Capture | None = None,
    tried: Bisected | None = None,
) -> Bisected:
    """Compile the failing program with careful options, then a smaller one with decisions switched off.

    The second only where no option helps. What is named was switched off (the failure was gone) and on again
    (it was back). What helps the reduced program is then tried on the whole one. `seen` is a captured run of
    the script, which is not run again then, and `tried` what `try_options` found.
    Raises ProblemError for a program that does not fail, or not by the compiler's doing: that is found out
    by one compile and one run in eager mode.
    """
    failing = await failing_program(context, workload, TIMED, seen)
    if tried is None:
        await refuse_others_faults(context, failing)
        tried = await try_options(context, failing, await switches_of(failing))
    context.progress("making the program smaller")
    reduced = await reduce_program(context, failing, budget_s * REDUCE_SHARE)
    if tried.outcome != "not_found":
        return _reported(context, failing, tried, reduced)
    if reduced.outcome != "reduced":
        raise ProblemError(
            "no option of the compiler makes the failure go away, and no smaller program fails in the same "
            f"way, so that there is nothing to bisect: {reduced.summary}",
            value=str(failing.target.workload.exported),
            next_call="reduce, or compare_with_eager",
        )
    done = await _search(context, failing, reduced, budget_s)
    workaround = await _workaround(context, failing, done)
    found = _result(context, tried, reduced, done, workaround)
    return _reported(context, failing, found, reduced)


async def refuse_others_faults(context: Context, failing: Failing) -> None:
    """Run the program once in eager mode. Raises `ProblemError` where it fails there in the same way.

    Also for inputs that its own guards refuse, and for a compile that failed over a tool or the machine.
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
            f"the failure is not the compiler's, so that no decision of it is to blame: {reason}",
            value=str(failing.failure),
            allowed="a program that runs well in eager mode on these inputs",
            next_call=next_call,
        )


def of_eager(failing: Failing, eager: WorkerRun) -> str:
    """How eager mode shows that the failure is not the compiler's; empty if it does not."""
    guard = eager.last(events.GuardFailed)
    if guard is not None:
        return f"the inputs are not what the program was exported for: {quoted(guard.text)}"
    failure = failing.failure
    if failure.phase == "compiling":  # it needs no inputs, so that they cannot be the reason
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
            return f"eager mode gives the same values that are not finite ({bad})"
    return ""


async def _search(context: Context, failing: Failing, reduced: Reduced, budget_s: float) -> WorkerRun:
    target = failing.target
    device = await anyio.to_thread.run_sync(exported_device, target.workload.exported)
    request = {
        "script": _script(reduced.files),
        "directory": context.fresh("experiments"),
        "failure": failing.failure.request(),
        "operators": [node.operator for node in reduced.nodes],
        "budget_s": budget_s,
        "each_s": target.workload.timeout_s,
        "parallel": most_children(),
        "fork": device == "cpu" and not target.imports and not target.workload.extra_imports,
    }
    context.progress("switching decisions of the compiler off, one kind after another")
    done = await run_worker(
        context, "bisect", target, request, timeout_s=budget_s + target.workload.timeout_s
    )
    bisected = done.last(events.Bisected)
    if bisected is None:
        raise ProblemError(
            "the search did not come to its end", value=done.phase, next_call="bisect with a larger timeout_s"
        )
    context.cost.compiles += bisected.compiles
    return done


async def _workaround(context: Context, failing: Failing, done: WorkerRun) -> Workaround | None:
    """Try on the whole program what helped in the reduced one."""
    found = done.last(events.Workaround)
    if found is None:
        return None
    asked: protocol.Workaround = {
        "configs": found.configs,
        "fallbacks": found.fallbacks,
        "decompositions": found.decompositions,
    }
    context.progress("trying the workaround on the whole program")
    trial = await run_worker(context, "attempt", failing.target, {"workaround": asked, **TIMED})
    return Workaround(
        code=workaround_lines(asked),
        reduced=cast(Result, found.outcome),
        whole=result_of(trial, failing),
        price=price(failing.attempt, trial),
    )


def _result(
    context: Context, tried: Bisected, reduced: Reduced, done: WorkerRun, workaround: Workaround | None
) -> Bisected:
    bisected = done.last(events.Bisected)
    assert bisected is not None
    found, failure = done.last(events.Decision), tried.failure
    # The model line of an operator: the outermost frame of its first node.
    lines = {node.operator: node.locations[-1] for node in reversed(reduced.nodes) if node.locations}
    decisions = [
        Decision(
            kind=cast(Kind, detail.kind),
            name=detail.key,
            operator=detail.op,
            location=lines.get(detail.op),
            rewrites=list(dict.fromkeys(detail.rewrites)),
            change=detail.change,
        )
        for detail in (found.details if found is not None else ())
    ]
    outcome: Outcome = "not_found"
    summary = f"No decision of the compiler was found behind the failure ({failure}): {bisected.reason}."
    if found is not None and not bisected.reason:
        outcome = "decision"
        names = []
        for each in decisions:
            rewrites = f" ({', '.join(each.rewrites)})" if each.rewrites else ""
            names.append((each.operator or each.name) + rewrites)
        origin = COMES_FROM[cast(Kind, found.kind)].format(names=", ".join(names))
        summary = f"The failure ({failure}) comes from {origin}."
    notes = []
    if found is not None and done.last(events.Workaround) is None:
        notes.append("this release of torch has no option that switches a single pass off (disabled_passes)")
    if workaround is not None and workaround.whole != "gone":
        notes.append("the workaround helps the reduced program and not the whole one: there is another fault")
    experiments = [
        Experiment(
            label=event.label[:300], result=cast(Result, event.outcome), seconds=round(event.seconds, 2)
        )
        for event in done.all(events.Experiment)
    ]
    return Bisected(
        outcome=outcome,
        summary=summary,
        failure=failure,
        decisions=decisions,
        also=cast(list[Kind], found.also) if found else [],
        workaround=workaround,
        experiments=[*tried.experiments, *experiments],
        compiles=tried.compiles + bisected.compiles,
        notes=notes,
        log=context.artifact(done.finished.output, "output of the search"),
        cost=context.cost.cost(),
    )


def _reported(context: Context, failing: Failing, found: Bisected, reduced: Reduced) -> Bisected:
    """With the smaller program, where there is one, and a text for PyTorch's tracker about a fault of it."""
    if reduced.outcome != "reduced":
        return found
    update: dict[str, object] = {"reproduction": reduced.files, "cost": context.cost.cost()}
    found = found.model_copy(update=update)
    if found.outcome != "decision":
        return found
    return found.model_copy(update={"report": _issue(context, found, failing.attempt.last(events.Torch))})


def _issue(context: Context, result: Bisected, torch: events.Torch | None) -> Artifact:
    """A report for PyTorch's tracker: what happens, the program, the versions, what was switched off."""
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
