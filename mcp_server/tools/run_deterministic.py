"""`run_deterministic`: repeat a workload under the flags that make a fault show where it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command, Finished
from mcp_server.model import (
    Artifact,
    CommandWorkload,
    Cost,
    ExportedWorkload,
    PackageWorkload,
    Record,
    ScriptWorkload,
    Workload,
)
from mcp_server.tools.capture import workload_argv
from mcp_server.tools.context import Context, WorkerRun
from mcp_server.tools.failure import Failure, read_failure, read_output
from mcp_server.tools.requests import run_request

MOST_REPEATS = 20

# Exactly 1: the allocator ignores any other value (c10/util/env, torch 2.8-2.15).
CACHING_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
CHECK_INPUTS = {"AOTI_RUNTIME_CHECK_INPUTS": "1"}

Pattern = Literal["clean", "stable", "flaky", "varying"]


class LastLaunchSeen(Record):
    """The kernel that a value printer announced last, without telling its end; `line` is in the run's log."""

    kernel: str
    line: int


class RepeatedRun(Record):
    """One run. `checksums` are of the outputs of its last call, where the worker made it."""

    number: int
    failure: Failure | None
    last_launch: LastLaunchSeen | None = None
    phase: str = ""
    nonfinite: bool = False
    checksums: list[str] = Field(default_factory=list)
    seconds: float
    log: Artifact

    @property
    def signature(self) -> str:
        """What makes two failures the same: the ending, and the root error as far as it is known."""
        if self.failure is None:
            return ""
        how = self.failure.signal or f"{self.failure.ending} {self.failure.returncode}"
        return f"{how}: {self.failure.family}" if self.failure.family else how


class Repeated(Record):
    """All runs, and what they have in common.

    `pattern`: clean (none failed), stable (all failed alike), varying (all failed, not alike), flaky (some
    failed: `failing` of `len(runs)`). `outputs_differ` is None when fewer than two clean runs gave outputs.
    """

    flags: dict[str, str]
    runs: list[RepeatedRun]
    pattern: Pattern
    failing: int
    signatures: dict[str, int] = Field(default_factory=dict)
    outputs_differ: bool | None = None
    notes: list[str] = Field(default_factory=list)
    cost: Cost


async def run_deterministic(
    context: Context,
    workload: Workload,
    *,
    repeats: int = 3,
    caching_off: bool = True,
    blocking: bool = True,
    check_inputs: bool = True,
) -> Repeated:
    """Run `workload` `repeats` times (1-20), each in a process of its own; does it fail the same way?

    An exported program is compiled once and its package repeated. Raises `ProblemError` for bad arguments;
    runs that fail are the result.
    """
    if not 1 <= repeats <= MOST_REPEATS:
        raise ProblemError("repeats is out of range", value=repeats, allowed=f"1 to {MOST_REPEATS}")
    flags = _flags(caching_off, blocking, check_inputs)
    workload = await _compiled(context, workload) if isinstance(workload, ExportedWorkload) else workload
    request = run_request(workload) if isinstance(workload, PackageWorkload) else None
    runs = []
    for number in range(repeats):
        context.progress(f"run {number + 1} of {repeats}")
        runs.append(await _run(context, workload, request, number, flags))
    return _judge(runs, flags, workload, context)


def _flags(caching_off: bool, blocking: bool, check_inputs: bool) -> dict[str, str]:
    return {
        **(CACHING_OFF if caching_off else {}),
        **(BLOCKING if blocking else {}),
        **(CHECK_INPUTS if check_inputs else {}),
    }


async def _compiled(context: Context, workload: ExportedWorkload) -> PackageWorkload:
    """The package of an exported program; raises `ProblemError` when it does not compile."""
    directory = context.fresh("compile")
    package = directory / "model.pt2"
    if workload.inputs is None:
        raise ProblemError("repeating an exported program needs inputs")
    done = await context.worker(
        "compile",
        {"exported": workload.exported, "package_path": package, "extra_imports": workload.extra_imports},
        directory=directory,
        env=workload.env,
        python=workload.python,
        cwd=workload.cwd,
        timeout_s=workload.timeout_s,
    )
    if not package.exists():
        failure = read_failure(done.finished)
        raise ProblemError(
            "the exported program does not compile",
            value=failure.text if failure else "",
            next_call="diagnose",
        )
    shared = workload.model_dump(include={"env", "python", "cwd", "timeout_s", "inputs", "extra_imports"})
    return PackageWorkload(package=package, **shared)


async def _run(
    context: Context,
    workload: Workload,
    request: Mapping[str, Any] | None,
    number: int,
    flags: Mapping[str, str],
) -> RepeatedRun:
    env = {**workload.env, **flags}
    if request is not None:
        done = await context.worker(
            "run",
            request,
            name=f"repeat-{number + 1}",
            env=env,
            python=workload.python,
            cwd=workload.cwd,
            timeout_s=workload.timeout_s,
            alone=True,
        )
        return _seen(context, number, done.finished, done)
    assert isinstance(workload, ScriptWorkload | CommandWorkload)
    command = Command(
        argv=workload_argv(context, workload),
        cwd=workload.cwd or Path.cwd(),
        env=env,
        timeout_s=workload.timeout_s,
    )
    return _seen(context, number, await context.run(command, f"repeat-{number + 1}", runs=1), None)


def _seen(context: Context, number: int, finished: Finished, done: WorkerRun | None) -> RepeatedRun:
    launch = read_output(finished.output).last_launch
    called = done.last("called") if done else None
    outputs = called["outputs"] if called else []
    return RepeatedRun(
        number=number + 1,
        failure=read_failure(finished),
        last_launch=LastLaunchSeen(kernel=launch.kernel, line=launch.line) if launch else None,
        phase=done.phase if done else "",
        nonfinite=any(output.get("nan") or output.get("inf") for output in outputs),
        checksums=[str(output["checksum"]) for output in outputs if "checksum" in output],
        seconds=round(finished.wall_s, 3),
        log=context.artifact(finished.output, f"output of run {number + 1}"),
    )


def _judge(runs: list[RepeatedRun], flags: dict[str, str], workload: Workload, context: Context) -> Repeated:
    signatures = Counter(run.signature for run in runs if run.failure)
    given = [tuple(run.checksums) for run in runs if run.failure is None and run.checksums]
    return Repeated(
        flags=flags,
        runs=runs,
        pattern=_pattern(len(runs), signatures),
        failing=signatures.total(),
        signatures=dict(signatures),
        outputs_differ=len(set(given)) > 1 if len(given) > 1 else None,
        notes=_notes(runs, workload),
        cost=context.cost.cost(),
    )


def _pattern(runs: int, signatures: Counter[str]) -> Pattern:
    failing = signatures.total()
    if not failing:
        return "clean"
    if failing < runs:
        return "flaky"
    return "stable" if len(signatures) == 1 else "varying"


def _notes(runs: list[RepeatedRun], workload: Workload) -> list[str]:
    """What the repeats cannot say."""
    notes = []
    if len(runs) == 1:
        notes.append("one run cannot tell a stable failure from a flaky one")
    if not any(run.failure for run in runs):
        notes.append("a clean exit says nothing about silent out-of-bounds reads or wrong numbers")
    if isinstance(workload, CommandWorkload):
        notes.append("the flags are in the command's environment; whether it obeys them is not known")
    return notes
