"""The result of a reduction: the smallest reproduction that fails in the same way all by itself."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

from mcp_server.jobs.types import Command, Finished
from mcp_server.model import Artifact, ExportedWorkload, ModelLocation
from mcp_server.package.exported import exported_device
from mcp_server.steps.context import WORKER_ENV, Context, WorkerRun
from mcp_server.steps.leases import gpus_of
from mcp_server.steps.reduce.failing import FailureShown, of_script
from mcp_server.steps.reduce.records import Reduced, ReducedNode
from mcp_server.steps.reduce.target import Target
from mcp_server.steps.reports import Event

SCRIPT = "repro.py"
VERIFIED = 3  # reproductions that are tried under a plain interpreter, the smallest first
ALONE = {**WORKER_ENV, "PYTHONDONTWRITEBYTECODE": "1"}
SMALL = 1 << 20  # bytes that are easily passed on


async def report(context: Context, target: Target, failure: FailureShown, done: WorkerRun) -> Reduced:
    """Run what the worker held, smallest first, until one fails in the same way under a plain interpreter."""
    told = done.last("reduced") or {"units": 0, "complete": False}
    shared: dict[str, Any] = {
        "failure": failure,
        "nodes_before": told["units"],
        "candidates": len(done.all("candidate")),
        "complete": bool(told["complete"]),
        "log": context.artifact(done.finished.output, "output of the reduction"),
    }
    context.cost.compiles += shared["candidates"]
    notes: list[str] = []
    for held in done.all("held")[: -VERIFIED - 1 : -1]:
        directory = _kept(context, Path(held["directory"]))
        finished = await run_script(context, target.workload, directory)
        if failure.same_as(of_script(finished)):
            shared["notes"] = [*notes, *_limits(held)]
            shared["command"] = shlex.join(
                [str(context.python_for(target.workload)), str(directory / SCRIPT)]
            )
            return _reduced(context, shared, held, directory, finished)
        notes.append(f"a reproduction of {held['operators']} operators did not fail by itself")
    limit = "" if shared["complete"] else " in this time (budget_s)"
    return Reduced(
        outcome="not_reduced",
        summary=f"The program fails ({failure}), but no part of it, cut out and exported again, did{limit}.",
        notes=[*notes, *_why(done)],
        cost=context.cost.cost(),
        **shared,
    )


def _kept(context: Context, held: Path) -> Path:
    """A copy of a reproduction under a name that says what it is."""
    directory = context.fresh("reproduction")
    shutil.copytree(held, directory, ignore=shutil.ignore_patterns("output.log"), dirs_exist_ok=True)
    return directory


async def run_script(context: Context, workload: ExportedWorkload, directory: Path) -> Finished:
    """Run the reproduction as anybody would: the interpreter and the script."""
    python = context.python_for(workload)
    gpus = gpus_of(exported_device(workload.exported))
    argv = (str(python), SCRIPT)
    command = Command(argv=argv, cwd=directory, env=ALONE, timeout_s=workload.timeout_s, gpus=gpus)
    return await context.run(command, "reproduction-run", runs=1)


def _reduced(
    context: Context, shared: dict[str, Any], held: Event, directory: Path, finished: Finished
) -> Reduced:
    counts = f"{held['operators']} of {shared['nodes_before']} operators"
    return Reduced(
        outcome="reduced",
        summary=f"{counts} still fail in the same way: {str(shared['failure']).rstrip('.')}.",
        exit_status=finished.returncode,
        files=[_file(context, path) for path in sorted(directory.iterdir()) if path.is_file()],
        nodes=[_node(node) for node in held["nodes"]],
        real=held["real"],
        seeded=held["made"],
        cost=context.cost.cost(),
        **shared,
    )


def _file(context: Context, path: Path) -> Artifact:
    return context.artifact(path, "reproduction" if path.name == SCRIPT else "needed beside it")


def _node(told: Event) -> ReducedNode:
    lines = [ModelLocation(file=f["file"], line=f["line"], code=f["code"]) for f in told["stack"]]
    return ReducedNode(name=told["node"], operator=told["op"], locations=lines)


def _limits(held: Event) -> list[str]:
    """What a reader must know before passing it on."""
    notes = ["inputs.pt holds values of the workload"] if held["real"] else []
    if held["bytes"] > SMALL:
        notes.append(f"the failure needs {held['bytes']} bytes of real values")
    return notes


def _why(done: WorkerRun) -> list[str]:
    reasons = [f"not cut: {event['reason']}" for event in done.all("uncuttable")]
    ends = [f"a candidate ended otherwise: {one_line(event['tail'])}" for event in done.all("candidate")]
    return [*dict.fromkeys([*reasons, *ends])][:5]


def one_line(text: str) -> str:
    """Bounded, and safe in the docstring of a script."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())[:200]
