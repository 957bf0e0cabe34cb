"""`reduce`: a small script that fails in the same way as a workload, or replays one of its launches."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.exported import exported_device
from mcp_server.tools.context import Context, WorkerRun, gpus_of
from mcp_server.tools.reduce.failing import (
    FailureShown,
    Reduced,
    Target,
    find_target,
    of_attempt,
    one_line,
    report,
)
from mcp_server.tools.reduce.launch import reduce_launch

MOST_CHILDREN = 8
# torch/_inductor/exc.py (2.8-2.15), OperatorIssue: the operator that could not be lowered.
TARGET = re.compile(r"^ *target: (\S+)$", re.MULTILINE)
# A reproduction takes over what steers torch, and nothing else of the environment.
STEERING = ("TORCH", "PYTORCH", "AOT_", "INDUCTOR", "TRITON", "CUDA_", "OMP_")


async def reduce_graph(
    context: Context, workload: ExportedWorkload | ScriptWorkload, *, budget_s: float = 300
) -> Reduced:
    """Find out how the program fails, then cut it down in isolated children for `budget_s` seconds.

    A script is run once, and its failing or suspect call is taken. The class of the failure is the same for
    every step: killed by the same signal, an exception of the same family in the same phase, NaN or infinity
    from finite values, or a departure from eager. When it is stopped, `*-candidates/best` holds the best
    reproduction so far.
    Raises ProblemError for a healthy program, for one that only hangs, and for a script without a program.
    """
    return await reduce_program(context, await failing_program(context, workload), budget_s)


@dataclass(frozen=True)
class Failing:
    """A program that was compiled and called once, and how it failed."""

    target: Target
    attempt: WorkerRun
    failure: FailureShown


async def failing_program(context: Context, workload: ExportedWorkload | ScriptWorkload) -> Failing:
    """Compile and call the workload's program once. Raises `ProblemError` if it does not fail."""
    target = await find_target(context, workload)
    attempt, target = await _attempt(context, target)
    failure = of_attempt(attempt)
    if failure is None:
        raise ProblemError(
            "the program does not fail: it compiles, runs, and gives finite outputs that agree with eager",
            value=str(target.workload.exported),
            allowed="a failing program with the inputs of the failing call",
            next_call="diagnose",
        )
    return Failing(target, attempt, failure)


async def reduce_program(context: Context, failing: Failing, budget_s: float) -> Reduced:
    """Cut a failing program down for `budget_s` seconds."""
    target, failure = failing.target, failing.failure
    recorded = await _recorded(context, target, failing.attempt)
    named = _named(failing.attempt, failure, recorded)
    done = await _reduce(context, target, failure, recorded, named, budget_s)
    return await report(context, target, failure, done)


async def _attempt(context: Context, target: Target) -> tuple[WorkerRun, Target]:
    """Compile and call once; where the program is not read back, with the script's own module, which may
    have its operators, and then with the program taken from the script.
    """
    done = await run_worker(context, "attempt", target, {})
    for again in _other_ways(target):
        if done.last("reading_inputs") is not None:
            break
        target = again
        done = await run_worker(context, "attempt", target, {})
    return done, target


def _other_ways(target: Target) -> Iterator[Target]:
    if target.imports and not target.taken:
        imports = [*target.workload.extra_imports, *target.imports]
        yield replace(target, workload=target.workload.model_copy(update={"extra_imports": imports}))
    if target.made_by and not target.taken:
        yield replace(target, taken=True)


async def _recorded(context: Context, target: Target, attempt: WorkerRun) -> WorkerRun:
    """The run that recorded the nodes: a new process, if the failure ended the attempt."""
    if attempt.last("evaluating") is not None:
        return attempt
    return await run_worker(context, "record", target, {})


async def run_worker(
    context: Context, operation: str, target: Target, more: dict[str, Any], timeout_s: float | None = None
) -> WorkerRun:
    workload = target.workload
    directory = context.fresh(operation)
    context.cost.compiles += operation == "attempt"
    request = {
        **target.source,
        "inputs": workload.inputs,
        "extra_imports": workload.extra_imports,
        "inductor_configs": dict(target.configs),
        "package_path": directory / "model.pt2",
        "values": directory / "values",
        **more,
    }
    return await context.worker(
        operation,
        request,
        directory=directory,
        env={
            "TORCHINDUCTOR_CACHE_DIR": str(context.directory / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            **workload.env,
        },
        python=context.python_for(workload),
        cwd=workload.cwd,
        timeout_s=timeout_s or workload.timeout_s,
        gpus=gpus_of(exported_device(workload.exported)),
    )


async def _reduce(
    context: Context,
    target: Target,
    failure: FailureShown,
    recorded: WorkerRun,
    named: list[str],
    budget_s: float,
) -> WorkerRun:
    values = recorded.all("value")
    bad = [event["node"] for event in values if event.get("nan") or event.get("inf")]
    return await run_worker(
        context,
        "reduce",
        target,
        {
            "values": recorded.directory / "values",
            "bad": bad,
            "guess": _guess(failure, recorded, bad, named),
            "failure": failure.request(),
            "repro_imports": target.imports if target.taken else (),
            "title": f"Reproduction of a failure of AOTInductor: {one_line(str(failure))}",
            "environment": {n: v for n, v in target.workload.env.items() if _steers(n)},
            "directory": context.fresh("candidates"),
            "budget_s": budget_s,
            "each_s": target.workload.timeout_s,
            "side_by_side": min(MOST_CHILDREN, len(os.sched_getaffinity(0))),
        },
        timeout_s=budget_s + target.workload.timeout_s,
    )


def _named(attempt: WorkerRun, failure: FailureShown, recorded: WorkerRun) -> list[str]:
    """Nodes whose operator the compiler named: as its target, or in a name that it did not find."""
    if failure.kind != "error" or failure.phase != "compiling":
        return []
    targets = set(TARGET.findall(attempt.finished.output.read_text(encoding="utf-8", errors="replace")))
    words = set(re.split(r"\W+", failure.text))
    return [
        str(event["node"])
        for event in recorded.all("node")
        if event["op"] in targets or (_is_users(event["op"]) and _ends(words, event["op"]))
    ]


def _is_users(operator: str) -> bool:
    return not operator.startswith(("aten.", "prims.", "<", "prim."))


def _ends(words: set[str], operator: str) -> bool:
    """Whether a word ends with the operator's name: that of its C shim does."""
    name = operator.split(".")[1] if "." in operator else operator
    return any(word == name or word.endswith("_" + name) for word in words)


def _guess(failure: FailureShown, recorded: WorkerRun, bad: list[str], named: list[str]) -> str | None:
    """The node that made the first value that is not finite, that the compiler named, that broke its fake
    function's promise, or that raised.
    """
    if failure.kind == "not_finite":
        return bad[0] if bad else None
    broken = [str(event["node"]) for event in recorded.all("broken_promise")]
    last = recorded.last("node")
    raised = [str(last["node"])] if last and recorded.last("recorded") is None else []
    return next(iter([*named, *raised, *broken]), None)


def _steers(variable: str) -> bool:
    return variable.startswith(STEERING) and not variable.endswith("CACHE_DIR")


async def reduce(
    context: Context,
    workload: PackageWorkload | ExportedWorkload | ScriptWorkload,
    *,
    scope: Literal["graph", "launch"] = "graph",
    launch: int | None = None,
    budget_s: float = 300,
) -> Reduced:
    """`graph`: few operators of an exported program; `launch`: one launch of a package with its values.

    Raises ProblemError as `reduce_graph` and `reduce_launch` do, and for a package without its program.
    """
    if scope == "launch":
        return await reduce_launch(context, workload, launch)
    if launch is not None:
        raise ProblemError("a launch is chosen", value=launch, allowed="with scope launch")
    if isinstance(workload, PackageWorkload):
        raise ProblemError(
            "a package does not hold the graph that it was compiled from",
            value=str(workload.package),
            allowed="exported=the program it was compiled from, script, or scope launch",
        )
    return await reduce_graph(context, workload, budget_s=budget_s)
