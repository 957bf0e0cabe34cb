"""`run_deterministic`: repeats a workload under flags that make a fault show where it happens."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.logs.facts import LastLaunch
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
from mcp_server.runtime.context import Context
from mcp_server.runtime.failure import Failure, read_failure, read_output
from mcp_server.tools.capture import workload_argv
from mcp_server.tools.compile_with_flags import compiled_package
from mcp_server.tools.requests import check_inputs_given, run_request
from mcp_server.worker import events

MOST_REPEATS = 20

# Exactly 1: the allocator ignores any other value (c10/util/env, torch 2.8-2.15).
CACHING_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
CHECK_INPUTS = {"AOTI_RUNTIME_CHECK_INPUTS": "1"}
FLAGS = {**CACHING_OFF, **BLOCKING, **CHECK_INPUTS}

Pattern = Literal["clean", "stable", "flaky", "varying"]


class RepeatedRun(Record):
    """One run. `checksums` are of the outputs of its last call, if the worker made the call.

    `last_launch` was announced by a value printer, and not reported as done; its line is in the log.
    """

    number: int
    failure: Failure | None
    last_launch: LastLaunch | None = None
    phase: str = ""
    nonfinite: bool = False
    checksums: list[str] = Field(default_factory=list)
    seconds: float
    log: Artifact

    @property
    def signature(self) -> str:
        """What two equal failures share: ending and, if known, root error."""
        if self.failure is None:
            return ""
        how = self.failure.signal or f"{self.failure.ending} {self.failure.returncode}"
        return f"{how}: {self.failure.family}" if self.failure.family else how


class Repeated(Record):
    """All runs, and what they have in common.

    `pattern`: clean (none failed), stable (all failed alike), varying (all failed, not alike), flaky (some
    failed: `failing` of `len(runs)`). `outputs_differ`: None if fewer than two clean runs gave outputs.
    """

    flags: dict[str, str]
    runs: list[RepeatedRun]
    pattern: Pattern
    failing: int
    signatures: dict[str, int] = Field(default_factory=dict)
    outputs_differ: bool | None = None
    notes: list[str] = Field(default_factory=list)
    cost: Cost


async def run_deterministic(context: Context, workload: Workload, *, repeats: int = 3) -> Repeated:
    """Run `workload` `repeats` times (1-20), each in its own process, to see if it fails the same way.

    The workload's own environment overrides `FLAGS`. An exported program is compiled once and its package
    repeated. Raise `ProblemError` for bad arguments; runs that fail are the result.
    """
    if not 1 <= repeats <= MOST_REPEATS:
        raise ProblemError("repeats is out of range", value=repeats, allowed=f"1 to {MOST_REPEATS}")
    flags = {name: workload.env.get(name, value) for name, value in FLAGS.items()}
    if isinstance(workload, ExportedWorkload):
        check_inputs_given(workload)
        workload = await compiled_package(context, workload)
    runs = []
    for number in range(1, repeats + 1):
        context.progress(f"run {number} of {repeats}")
        runs.append(await _run(context, workload, number, {**workload.env, **flags}))
    signatures = Counter(run.signature for run in runs if run.failure)
    failing = signatures.total()
    pattern: Pattern = "stable" if len(signatures) == 1 else "varying"
    if failing < repeats:
        pattern = "flaky" if failing else "clean"
    notes = []  # notes on what the repeats cannot show
    if repeats == 1:
        notes.append("one run cannot tell a stable failure from a flaky one")
    if not failing:
        notes.append("a clean exit says nothing about silent out-of-bounds reads or wrong numbers")
    if isinstance(workload, CommandWorkload):
        notes.append("the flags are in the command's environment; whether it obeys them is not known")
    outputs = [tuple(run.checksums) for run in runs if run.failure is None and run.checksums]
    return Repeated(
        flags=flags,
        runs=runs,
        pattern=pattern,
        failing=failing,
        signatures=dict(signatures),
        outputs_differ=len(set(outputs)) > 1 if len(outputs) > 1 else None,
        notes=notes,
        cost=context.cost.cost(),
    )


async def _run(context: Context, workload: Workload, number: int, env: Mapping[str, str]) -> RepeatedRun:
    called, phase = None, ""
    if isinstance(workload, PackageWorkload):
        request, name = run_request(workload), f"repeat-{number}"
        done = await context.worker("run", request, name=name, workload=workload, env=env, alone=True)
        finished, called, phase = done.finished, done.last(events.Called), done.phase
    else:
        assert isinstance(workload, ScriptWorkload | CommandWorkload)
        command = Command(
            argv=workload_argv(context, workload),
            cwd=workload.cwd or Path.cwd(),
            env=env,
            timeout_s=workload.timeout_s,
        )
        finished = await context.run(command, f"repeat-{number}", runs=1)
    outputs = called.outputs if called else []
    return RepeatedRun(
        number=number,
        failure=read_failure(finished),
        last_launch=read_output(finished.output).last_launch,
        phase=phase,
        nonfinite=any(output.not_finite for output in outputs),
        checksums=[output.checksum for output in outputs if output.checksum is not None],
        seconds=round(finished.wall_s, 3),
        log=context.artifact(finished.output, f"output of run {number}"),
    )
