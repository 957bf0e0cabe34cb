"""`reduce`: a small script that fails in the same way as a workload, or replays one of its launches."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.logs.captured import CapturedCall, CapturedCompile, CapturedUpdate
from mcp_server.model import ExportedWorkload, ModelLocation, PackageWorkload, ScriptWorkload
from mcp_server.package.exported import exported_device
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.tools.capture import Capture, capture
from mcp_server.tools.reduce.failing import (
    SCRIPT,
    SMALL,
    FailureShown,
    Reduced,
    ReducedNode,
    of_attempt,
    of_script,
    one_line,
    run_script,
)
from mcp_server.tools.reduce.launch import reduce_launch
from mcp_server.tools.requests import failing_phase, how_made, imports_of
from mcp_server.worker import events
from mcp_server.worker.protocol import MadeBy

VERIFIED = 3  # reproductions that are tried under a plain interpreter, the smallest first
HELP = "an exported program (torch.export.save) with inputs, or the script that compiles it"
# torch/_inductor/exc.py (2.8-2.15), OperatorIssue: the operator that could not be lowered.
TARGET = re.compile(r"^ *target: (\S+)$", re.MULTILINE)
# A reproduction takes over what steers torch, and nothing else of the environment.
STEERING = ("TORCH", "PYTORCH", "AOT_", "INDUCTOR", "TRITON", "CUDA_", "OMP_")


def most_children() -> int:
    """How many compiles run side by side."""
    return min(8, len(os.sched_getaffinity(0)))


async def reduce(
    context: Context,
    workload: PackageWorkload | ExportedWorkload | ScriptWorkload,
    *,
    scope: Literal["graph", "launch"] = "graph",
    launch: int | None = None,
    budget_s: float = 300,
) -> Reduced:
    """`graph`: few operators of an exported program; `launch`: one launch of a package with its values.

    For `graph` the program is cut down in isolated children for `budget_s` seconds. A script is run once, and
    its failing or suspect call is taken. The class of the failure is the same for every step: killed by the
    same signal, an exception of the same family in the same phase, NaN or infinity from finite values, or a
    difference from eager. When it is stopped, `*-candidates/best` holds the best reproduction so far.
    Raises ProblemError for a package without its program, a healthy program, one that only hangs, and a
    script without a program; for `launch` as `reduce_launch` does.
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
    return await reduce_program(context, await failing_program(context, workload), budget_s)


class NoFailure(ProblemError):
    """The program compiles, runs, and agrees with eager."""


@dataclass(frozen=True)
class Failing:
    """A program that was compiled and called once, and how it failed."""

    target: Target
    attempt: WorkerRun
    failure: FailureShown


async def failing_program(
    context: Context,
    workload: ExportedWorkload | ScriptWorkload,
    more: Mapping[str, object] | None = None,
    seen: Capture | None = None,
) -> Failing:
    """Compile and call the workload's program once. Raises `NoFailure` if it does not fail.

    `more` are further arguments of the worker's attempt. `seen` is a run of the script that was captured.
    """
    target = await _find_target(context, workload, seen)
    attempt = await run_worker(context, "attempt", target, more)
    # Where the program is not read back: with the script's own module, which may have its operators, and
    # then with the program taken from the script.
    if not attempt.phases("reading_inputs") and target.imports and not target.taken:
        imports = [*target.workload.extra_imports, *target.imports]
        target = replace(target, workload=target.workload.model_copy(update={"extra_imports": imports}))
        attempt = await run_worker(context, "attempt", target, more)
    if not attempt.phases("reading_inputs") and target.made_by and not target.taken:
        target = replace(target, taken=True)
        attempt = await run_worker(context, "attempt", target, more)
    failure = of_attempt(attempt)
    if failure is None:
        raise NoFailure(
            "the program does not fail: it compiles, runs, and gives finite outputs that agree with eager",
            value=str(target.workload.exported),
            allowed="a failing program with the inputs of the failing call",
            next_call="diagnose",
        )
    return Failing(target, attempt, failure)


async def reduce_program(context: Context, failing: Failing, budget_s: float) -> Reduced:
    """Cut a failing program down for `budget_s` seconds."""
    target, attempt, failure = failing.target, failing.attempt, failing.failure
    # The values of the nodes are recorded in a new process if the failure ended the attempt.
    ended = not attempt.phases("evaluating")
    recorded = await run_worker(context, "record", target) if ended else attempt
    values = recorded.all(events.Value)
    bad = [event.node for event in values if event.nan or event.inf]
    # The suspected node: the one that made the first value that is not finite; else one that the compiler
    # named, that raised, or that broke its fake function's promise.
    suspected = bad
    if failure.kind != "not_finite":
        last = recorded.last(events.Node)
        raised = [last.node] if last and not recorded.phases("recorded") else []
        named = _named_by_compiler(attempt, failure, recorded)
        suspected = [*named, *raised, *(event.node for event in recorded.all(events.FakeMismatch))]
    env = target.workload.env
    steering = [name for name in env if name.startswith(STEERING) and not name.endswith("CACHE_DIR")]
    request = {
        "values": recorded.directory / "values",
        "bad": bad,
        "guess": suspected[0] if suspected else None,
        "failure": failure.request(),
        "repro_imports": target.imports if target.taken else (),
        "title": f"Reproduction of a failure of AOTInductor: {one_line(str(failure))}",
        "environment": {name: env[name] for name in steering},
        "directory": context.fresh("candidates"),
        "budget_s": budget_s,
        "each_s": target.workload.timeout_s,
        "parallel": most_children(),
    }
    done = await run_worker(context, "reduce", target, request, budget_s + target.workload.timeout_s)
    return await _verified(context, target, failure, done)


@dataclass(frozen=True)
class Target:
    """`imports` register custom operators; of a captured program they are tried only if it needs them.

    `made_by` says how the script makes the program (worker/loading.py), should no file give it back; with
    `taken` it is taken from there.
    """

    workload: ExportedWorkload
    configs: Mapping[str, object]
    imports: tuple[str, ...] = ()
    made_by: MadeBy | None = None
    taken: bool = False


async def _find_target(
    context: Context, workload: ExportedWorkload | ScriptWorkload, seen: Capture | None = None
) -> Target:
    """The program to reduce. Raises `ProblemError` for a script that compiles none, or whose is not kept."""
    if isinstance(workload, ExportedWorkload):
        return Target(workload, {})
    seen = seen or await capture(context, workload)
    phase = failing_phase(seen)
    # The failing or suspect call with the compile of its package; a compile alone when that failed.
    call = phase if isinstance(phase, CapturedCall) else seen.suspect
    compiled: CapturedCompile | None = None
    if isinstance(phase, CapturedCompile):
        call, compiled = None, phase
    elif call is not None and call.file is not None and not isinstance(phase, CapturedUpdate):
        compiled = seen.compile_of(call)
    made_by = how_made(seen, compiled, workload) if compiled is not None else None
    if compiled is None or (compiled.exported is None and made_by is None):
        what, allowed = "the script compiles no exported program whose call could be taken", HELP
        if compiled is not None and compiled.notice:
            what = f"the program that the script compiles could not be kept: {compiled.notice}"
            allowed = "a script that compiles an exported program in its own process"
        raise ProblemError(what, value=str(workload.script), allowed=allowed)
    exported = ExportedWorkload(
        exported=compiled.exported or workload.script,
        inputs=call.file if call is not None else None,
        **workload.model_dump(include={"env", "python", "cwd", "timeout_s"}),
    )
    imports, taken = tuple(imports_of(seen, compiled)), compiled.exported is None
    return Target(exported, compiled.configs, imports, made_by, taken)


async def run_worker(
    context: Context,
    operation: Literal["attempt", "record", "reduce", "bisect", "interpret"],
    target: Target,
    more: Mapping[str, object] | None = None,
    timeout_s: float | None = None,
) -> WorkerRun:
    workload = target.workload
    directory = context.fresh(operation)
    context.cost.compiles += operation == "attempt"
    source = {"made_by": target.made_by} if target.taken else {"exported": workload.exported}
    request = {
        **source,
        "inputs": workload.inputs,
        "extra_imports": workload.extra_imports,
        "inductor_configs": dict(target.configs),
        "package_path": directory / "model.pt2",
        "values": directory / "values",
        **(more or {}),
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
        python=workload.python,
        cwd=workload.cwd,
        timeout_s=timeout_s or workload.timeout_s,
        gpus=gpus_of(await anyio.to_thread.run_sync(exported_device, workload.exported)),
    )


def _named_by_compiler(attempt: WorkerRun, failure: FailureShown, recorded: WorkerRun) -> list[str]:
    """Nodes whose operator the compiler named: as its target, or in a name that it did not find."""
    if failure.kind != "error" or failure.phase != "compiling":
        return []
    targets = set(TARGET.findall(attempt.finished.output.read_text(encoding="utf-8", errors="replace")))
    words = re.split(r"\W+", failure.text)
    found = []
    for event in recorded.all(events.Node):
        operator = event.op
        # The name of a user's operator's C shim ends with the operator's name.
        name = operator.split(".")[1] if "." in operator else operator
        users = not operator.startswith(("aten.", "prims.", "<", "prim."))
        if operator in targets or (users and any(w == name or w.endswith("_" + name) for w in words)):
            found.append(event.node)
    return found


async def _verified(context: Context, target: Target, failure: FailureShown, done: WorkerRun) -> Reduced:
    """Run what the worker kept, smallest first, until one fails in the same way under a plain interpreter."""
    end = done.last(events.Reduced) or events.Reduced()
    limit = "" if end.complete else " in this time (budget_s)"
    result = Reduced(
        outcome="not_reduced",
        summary=f"The program fails ({failure}), but no part of it, cut out and exported again, did{limit}.",
        failure=failure,
        nodes_before=end.units,
        candidates=len(done.all(events.Candidate)),
        complete=end.complete,
        log=context.artifact(done.finished.output, "output of the reduction"),
        cost=context.cost.cost(),
    )
    context.cost.compiles += result.candidates
    gpus = gpus_of(await anyio.to_thread.run_sync(exported_device, target.workload.exported))
    failed = done.last(events.Failed)
    notes = [f"the reduction itself failed: {one_line(failed.text)}"] if failed else []
    left_out = shutil.ignore_patterns("output.log")
    for kept in done.all(events.Kept)[: -VERIFIED - 1 : -1]:
        directory = context.fresh("reproduction")
        shutil.copytree(kept.directory, directory, ignore=left_out, dirs_exist_ok=True)
        finished = await run_script(context, target.workload, directory, gpus)
        if not failure.same_as(of_script(finished)):
            notes.append(f"a reproduction of {kept.operators} operators did not fail by itself")
            continue
        if kept.real:
            notes.append("inputs.pt holds values of the workload")
        if kept.bytes > SMALL:
            notes.append(f"the failure needs {kept.bytes} bytes of real values")
        counts = f"{kept.operators} of {result.nodes_before} operators"
        update = {
            "outcome": "reduced",
            "summary": f"{counts} still fail in the same way: {str(failure).rstrip('.')}.",
            "command": shlex.join([str(context.python_for(target.workload)), str(directory / SCRIPT)]),
            "exit_status": finished.returncode,
            "files": [
                context.artifact(path, "reproduction" if path.name == SCRIPT else "needed in the same folder")
                for path in sorted(directory.iterdir())
                if path.is_file()
            ],
            "nodes": [
                ReducedNode(
                    name=node.node,
                    operator=node.op,
                    locations=[
                        ModelLocation(file=frame.file, line=frame.line or 0, code=frame.code)
                        for frame in node.stack
                    ],
                )
                for node in kept.nodes
            ],
            "real": kept.real,
            "seeded": kept.seeded,
        }
        return result.model_copy(update={**update, "notes": notes, "cost": context.cost.cost()})
    reasons = [f"not cut: {event.reason}" for event in done.all(events.Uncuttable)]
    ends = [f"a candidate ended otherwise: {one_line(event.tail)}" for event in done.all(events.Candidate)]
    why = list(dict.fromkeys([*reasons, *ends]))[:5]
    return result.model_copy(update={"notes": [*notes, *why], "cost": context.cost.cost()})
