"""`bisect`: which decision of the compiler makes a program fail, and what to write to work around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.logs.families import BY_ID
from mcp_server.model import Artifact, Cost, ExportedWorkload, ModelLocation, Record, ScriptWorkload
from mcp_server.package.exported import exported_device
from mcp_server.plurals import quoted
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.runtime.failure import read_failure
from mcp_server.tools.capture import Capture
from mcp_server.tools.reduce.failing import SCRIPT, FailureShown, Reduced, of_attempt
from mcp_server.tools.reduce.reduce import (
    Failing,
    failing_program,
    most_children,
    reduce_program,
    run_worker,
)
from mcp_server.worker import events, protocol

Kind = Literal["pass", "switch", "decomposition", "lowering", "precision"]
Result = Literal["gone", "same", "other"]
Outcome = Literal["decision", "rounding", "not_found"]

# What takes a decision back, by option of torch._inductor.config (2.8-2.15; the worker leaves out what the
# release lacks). The value is the careful choice, which costs speed and nothing else.
SWITCHES: dict[str, dict[str, object]] = {
    "cpu": {
        "cpp.simdlen": 1,
        "cpp.threads": 1,
        "cpp.enable_loop_tail_vec": False,
        "cpp.enable_tiling_heuristics": False,
        "cpp.weight_prepack": False,
    },
    "cuda": {
        "triton.autotune_at_compile_time": False,
        "triton.persistent_reductions": False,
        "split_reductions": False,
    },
    "any": {
        "max_fusion_size": 1,
        "epilogue_fusion": False,
        "prologue_fusion": False,
        "allow_buffer_reuse": False,
        "inplace_buffers": False,
        "layout_optimization": False,
        "comprehensive_padding": False,
        "memory_planning": False,
        "reorder_for_locality": False,
        "loop_ordering_after_fusion": False,
    },
}
# Rounds intermediate results of bf16 and fp16 as eager does (torch/_inductor/config.py, 2.6 and later).
PRECISION = {"emulate_precision_casts": True}
TIMED = {"timed_calls": 5}  # of the whole program, with and without the workaround
REDUCE_SHARE = 0.5  # of the budget: a smaller program makes every experiment cheaper
COMES_FROM: dict[Kind, str] = {
    "pass": "the graph pass {names}",
    "switch": "the code generation that {names} takes back",
    "decomposition": "the decomposition of {names}",
    "lowering": "the generated code of {names}",
    "precision": "rounding: intermediate results are kept in a wider type than in eager",
}


class Decision(Record):
    """One decision of the compiler.

    `rewrites` are the functions of torch that changed the graph in a pass of patterns. `change` are the lines
    that a pass took out of the graph and put in.
    """

    kind: Kind
    name: str
    operator: str = ""
    location: ModelLocation | None = None
    rewrites: list[str] = Field(default_factory=list)
    change: list[str] = Field(default_factory=list)


class Workaround(Record):
    """What to write before or in the compile. `reduced` and `whole`: what the two programs then do.

    `reduced` is None where nothing was reduced. `price` is the time of a call with it over the time without
    it, in the whole program; None if the program crashes without it.
    """

    code: str
    reduced: Result | None = None
    whole: Result
    price: float | None = None


class Experiment(Record):
    """One compile of the reduced program, and whether the failure was gone in it."""

    label: str
    result: Result
    seconds: float


class Bisected(Record):
    """What makes the program fail: `decision` (a fault of the compiler), `rounding` (no fault), or not found.

    `also` are other kinds of decision whose absence hides the failure. `report` is a text for PyTorch's issue
    tracker.
    """

    outcome: Outcome
    summary: str
    failure: FailureShown
    decisions: list[Decision] = Field(default_factory=list)
    also: list[Kind] = Field(default_factory=list)
    workaround: Workaround | None = None
    experiments: list[Experiment] = Field(default_factory=list)
    compiles: int
    reproduction: list[Artifact] = Field(default_factory=list)
    report: Artifact | None = None
    notes: list[str] = Field(default_factory=list)
    log: Artifact
    cost: Cost


async def bisect(
    context: Context,
    workload: ExportedWorkload | ScriptWorkload,
    *,
    budget_s: float = 600,
    seen: Capture | None = None,
) -> Bisected:
    """Reduce the failing program, then compile it repeatedly with decisions of the compiler switched off.

    What is named was switched off (the failure was gone) and on again (it was back). The workaround is then
    tried on the whole program. `seen` is a captured run of the script, which is not run again then.
    Raises ProblemError for a program that does not fail, or not by the compiler's doing: that is found out
    by one compile and one run in eager mode.
    """
    failing = await failing_program(context, workload, TIMED, seen)
    await refuse_others_faults(context, failing)
    context.progress("making the program smaller")
    reduced = await reduce_program(context, failing, budget_s * REDUCE_SHARE)
    if reduced.outcome != "reduced":
        raise ProblemError(
            "no smaller program fails in the same way, so that there is nothing to bisect: "
            + reduced.summary,
            value=str(failing.target.workload.exported),
            next_call="reduce, or compare_with_eager",
        )
    done = await _search(context, failing, reduced, budget_s)
    workaround = await _workaround(context, failing, done)
    return _result(context, failing.failure, reduced, done, workaround)


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


def switches_of(device: str | None) -> dict[str, object]:
    """The options to try for a program on `device`; those of all devices where it is not known."""
    kinds = ("any", device) if device else ("any", "cpu", "cuda")
    return {name: value for kind in kinds for name, value in SWITCHES[kind].items()}


async def _search(context: Context, failing: Failing, reduced: Reduced, budget_s: float) -> WorkerRun:
    target, failure = failing.target, failing.failure
    device = await anyio.to_thread.run_sync(exported_device, target.workload.exported)
    request = {
        "script": _script(reduced.files),
        "directory": context.fresh("experiments"),
        "failure": failure.request(),
        "switches": switches_of(device),
        "operators": [node.operator for node in reduced.nodes],
        "precision": PRECISION if failure.kind == "departs" else None,
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


def result_of(trial: WorkerRun, failing: Failing) -> Result:
    """What became of the failure in a compile with one thing changed. Raises as `of_attempt` does."""
    judged = trial.last(events.Judged)
    if failing.failure.kind == "departs" and judged is not None and not judged.departs:
        return "gone"  # what is not finite is so in eager mode, too
    left = of_attempt(trial)
    same = left is not None and left.same_as(failing.failure)
    return "gone" if left is None else "same" if same else "other"


def price(before: WorkerRun, after: WorkerRun) -> float | None:
    """The time of a call after over that before; None if one of them was not timed."""
    timed, again = before.last(events.Timed), after.last(events.Timed)
    if not (timed and again and timed.seconds):
        return None
    return round(again.seconds / timed.seconds, 2)


def workaround_lines(asked: protocol.Workaround) -> str:
    """The lines that a user writes."""
    lines = [
        f"torch._inductor.decomposition.{table}.pop(torch.ops.{name}, None)"
        for name in asked.get("decompositions", ())
        for table in ("decompositions", "select_decomp_table()")  # a copy once anything was compiled
    ]
    for name in asked.get("fallbacks", ()):
        lines.append(f"torch._inductor.decomposition.decompositions.pop(torch.ops.{name}, None)")
        lines.append(
            f"torch._inductor.lowering.make_fallback(torch.ops.{name}, warn=False, override_decomp=True)"
        )
    if asked.get("configs"):
        lines.append(f"aoti_compile_and_package(..., inductor_configs={dict(asked['configs'])!r})")
    return "\n".join(lines)


def _result(
    context: Context, failure: FailureShown, reduced: Reduced, done: WorkerRun, workaround: Workaround | None
) -> Bisected:
    bisected = done.last(events.Bisected)
    assert bisected is not None
    found = done.last(events.Decision)
    reason = bisected.reason
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
    summary = f"No decision of the compiler was found behind the failure ({failure}): {reason}."
    if found is not None and not reason and (found.kind == "precision" or found.rounding):
        outcome = "rounding"
        summary = (
            "The difference is rounding, not a fault: with intermediate results rounded as in eager "
            "(emulate_precision_casts) the outputs agree."
        )
    elif found is not None and not reason:
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
    result = Bisected(
        outcome=outcome,
        summary=summary,
        failure=failure,
        decisions=decisions,
        also=cast(list[Kind], found.also) if found else [],
        workaround=workaround,
        experiments=[
            Experiment(
                label=event.label[:300], result=cast(Result, event.outcome), seconds=round(event.seconds, 2)
            )
            for event in done.all(events.Experiment)
        ],
        compiles=bisected.compiles,
        reproduction=reduced.files,
        notes=notes,
        log=context.artifact(done.finished.output, "output of the search"),
        cost=context.cost.cost(),
    )
    if outcome != "decision":
        return result
    return result.model_copy(update={"report": _issue(context, result, done)})


def _issue(context: Context, result: Bisected, done: WorkerRun) -> Artifact:
    """A report for PyTorch's tracker: what happens, the program, the versions, what was switched off."""
    script = _script(result.reproduction)
    torch = done.last(events.Torch)
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
