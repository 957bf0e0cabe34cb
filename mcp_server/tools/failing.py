"""A failing program: how it fails, whether another failure is the same, and how to compile it once more.

Each such compile changes options, a workaround, compiler decisions, or the program itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Literal

import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Finished
from mcp_server.logs.captured import CapturedCall, CapturedCompile, CapturedUpdate
from mcp_server.model import ExportedWorkload, Record, ScriptWorkload
from mcp_server.package.exported import exported_device
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.runtime.failure import Failure, read_failure
from mcp_server.tools.capture import Capture, capture
from mcp_server.tools.requests import failing_phase, how_made, imports_of
from mcp_server.worker import events
from mcp_server.worker.protocol import MadeBy

Kind = Literal["crash", "error", "not_finite", "departs"]
# What happened to a failure in a compile with something changed.
Result = Literal["gone", "same", "other"]

# Exit status of a reproduction (worker/reduction/script.py).
STATUS: dict[Kind, int] = {"error": 1, "not_finite": 3, "departs": 4}
NOT_EXPORTED = 5
# Events of the worker's `attempt` that begin a phase of AOTInductor.
PHASES = {"compiling": "compiling", "loading": "loading", "loaded": "loading", "calling": "calling"}
HELP = "an exported program (torch.export.save) with inputs, or the script that compiles it"
COMPILER = tuple(f"torch._inductor.{name}" for name in ("codegen.cpp_wrapper_cpu", "compile_fx", "package"))
# What differs between two failures of one kind: addresses, numbers, names of temporaries, kernels and files.
_VOLATILE = re.compile(r"0x[0-9a-f]+|/\S+|\b(?:cpp|triton)_\w+|\d+")
COMPARED = 200  # characters of a text; the rest may have been cut


class FailureShown(Record):
    """A failure. `kind` is crash (killed by `signal`), error (an exception, in `phase`), not_finite (`nan` if
    any is NaN) or departs (from eager). `family` and `text` come from the root error, if any.
    """

    kind: Kind
    phase: str = ""
    signal: str | None = None
    family: str = ""
    text: str = ""
    nan: bool = False

    def __str__(self) -> str:
        if self.kind == "not_finite":
            return "NaN in an output" if self.nan else "infinity in an output"
        if self.kind == "departs":
            return "an output that differs from eager"
        how = f"killed by {self.signal}" if self.kind == "crash" else f"an exception while {self.phase}"
        return f"{how}: {self.text}" if self.text else how

    def same_as(self, other: FailureShown) -> bool:
        """Whether `other` is this failure: same kind, signal and family, and for an error the same phase.

        The text of an error counts, too, if it has no family or a wide one, as in a compile.
        """
        if (self.kind, self.signal, self.family) != (other.kind, other.signal, other.family):
            return False
        if self.kind != "error":
            return other.nan or not self.nan
        by_family = self.family not in ("", "python_exception") and self.phase != "compiling"
        return self.phase == other.phase and (by_family or essence(self.text) == essence(other.text))


def essence(line: str) -> str:
    """Remove from a line what changes between runs."""
    return _VOLATILE.sub("#", line).strip()[:COMPARED]


def of_attempt(done: WorkerRun) -> FailureShown | None:
    """Return how the worker's `attempt` failed. None if the program is healthy.

    Raise `ProblemError` for a run that did not end in time, or that failed before the compile.
    """
    judged = done.last(events.Judged)
    called = done.last(events.Called)
    if judged is None and called is not None:  # only eager mode failed: judge the package alone
        not_finite = any(output.not_finite for output in called.outputs)
        judged = events.Judged(not_finite, any(output.nan for output in called.outputs), departs=False)
    if judged is not None:
        if judged.not_finite:
            return FailureShown(kind="not_finite", phase="calling", nan=judged.nan)
        return FailureShown(kind="departs", phase="calling") if judged.departs else None
    failure = read_failure(done.finished)
    assert failure is not None
    phase = next((PHASES[e.event] for e in reversed(done.events) if e.event in PHASES), "")
    if not phase:
        raise ProblemError(
            "the program cannot be loaded: " + failure.text,
            allowed="extra_imports for its operators, or a script, which needs no saved program",
            next_call="diagnose",
        )
    return of_ending(done.finished, failure, phase)


def of_script(finished: Finished) -> FailureShown | None:
    """Return how a reproduction failed, from its exit status and output. None if it did not.

    Raise `ProblemError` if it did not end in time.
    """
    if finished.ok or finished.returncode == NOT_EXPORTED:
        return None
    text = _output(finished)
    if finished.returncode == STATUS["not_finite"]:
        found = [line for line in text.splitlines() if line.startswith("not finite: ")]
        nan = any(" 0 nan " not in line for line in found)
        return FailureShown(kind="not_finite", phase="calling", nan=nan)
    if finished.returncode == STATUS["departs"]:
        return FailureShown(kind="departs", phase="calling")
    phases = [line.removeprefix("phase: ") for line in text.splitlines() if line.startswith("phase: ")]
    failure = read_failure(finished)
    return of_ending(finished, failure, phases[-1] if phases else "") if failure is not None else None


def _output(finished: Finished) -> str:
    return finished.output.read_text(encoding="utf-8", errors="replace") if finished.output.exists() else ""


def of_ending(finished: Finished, failure: Failure, phase: str) -> FailureShown:
    """Describe a child that was killed or raised. Raise `ProblemError` for any other end."""
    if finished.ending not in ("exit", "signal"):
        raise ProblemError(
            f"it ended with {finished.ending}, which smaller programs cannot be compared with",
            value=failure.text,
            allowed="a crash, an exception, an output that is not finite or differs from eager",
            next_call="trace_launches",
        )
    kind: Kind = "crash" if finished.signal else "error"
    return FailureShown(
        kind=kind, phase=phase, signal=finished.signal, family=failure.family, text=failure.text[:300]
    )


@dataclass(frozen=True)
class Target:
    """A program to compile. `imports` register custom operators; captured programs use them only if needed.

    `made_by` says how the script creates the program (worker/loading.py), in case its saved file cannot be
    read; with `taken` the program is taken from the script.
    """

    workload: ExportedWorkload
    configs: Mapping[str, object]
    imports: tuple[str, ...] = ()
    made_by: MadeBy | None = None
    taken: bool = False

    @property
    def env(self) -> dict[str, str]:
        return {"TORCHINDUCTOR_COMPILE_THREADS": "1", **self.workload.env}

    @cached_property
    def device(self) -> Literal["cpu", "cuda"] | None:
        """The device of the program's tensors, read from its file once for all candidates."""
        return exported_device(self.workload.exported)

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs that a child leases to run the program or a part of it."""
        return gpus_of(self.device) or ()


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
    """Compile and call the workload's program once. Raise `NoFailure` if it does not fail.

    `more` are further arguments for the worker's attempt. `seen` is a captured run of the script.
    """
    target = await _find_target(context, workload, seen)
    attempt = await run_worker(context, "attempt", target, more)
    # If the program cannot be read, try with the script's module, which may register its operators, and then
    # with the program taken from the script.
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


async def _find_target(
    context: Context, workload: ExportedWorkload | ScriptWorkload, seen: Capture | None = None
) -> Target:
    """Find the program to reduce. Raise `ProblemError` if the script compiles none, or it was not kept."""
    if isinstance(workload, ExportedWorkload):
        return Target(workload, {})
    seen = seen or await capture(context, workload)
    phase = failing_phase(seen)
    # The failing or suspect call with the compile of its package, or the compile alone if that failed.
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
    operation: Literal["attempt", "record", "cut", "interpret"],
    target: Target,
    more: Mapping[str, object] | None = None,
) -> WorkerRun:
    """Run one operation of the worker on the program."""
    directory = context.fresh(operation)
    source = {"made_by": target.made_by} if target.taken else {"exported": target.workload.exported}
    request = {
        **source,
        "inputs": target.workload.inputs,
        "extra_imports": target.workload.extra_imports,
        "inductor_configs": dict(target.configs),
        "package_path": directory / "model.pt2",
        "values": directory / "values",
        **(more or {}),
    }
    return await _run(context, operation, target, request, directory)


async def try_script(
    context: Context, failing: Failing, script: Path, more: Mapping[str, object] | None = None
) -> tuple[Result, WorkerRun]:
    """Run a reproduction in the worker; `more` changes its compile. Return the result and the run."""
    request = {"script": script, "temporary": str(context.temporary()), **(more or {})}
    done = await _run(context, "trial", failing.target, request, context.fresh("trial"))
    ended = done.last(events.ScriptEnded)
    finished = done.finished if ended is None else replace(done.finished, returncode=ended.status)
    return result_of_script(finished, failing.failure), replace(done, finished=finished)


async def _run(
    context: Context, operation: str, target: Target, request: Mapping[str, object], directory: Path
) -> WorkerRun:
    workload = target.workload
    env = {"TORCHINDUCTOR_CACHE_DIR": str(context.directory / "inductor"), **target.env}
    context.expect(env=env, python=workload.python, cwd=workload.cwd, modules=COMPILER)
    return await context.worker(
        operation,
        request,
        directory=directory,
        env=env,
        python=workload.python,
        cwd=workload.cwd,
        timeout_s=workload.timeout_s,
        gpus=await anyio.to_thread.run_sync(attrgetter("gpus"), target),
    )


def result_of_script(finished: Finished, failure: FailureShown) -> Result:
    """What happened to the failure in a reproduction. Non-finite values as in eager mode count as gone."""
    try:
        shown = of_script(finished)
    except ProblemError:  # for example a hang
        return "other"
    if shown is None:
        return "gone" if finished.ok else "other"
    if failure.same_as(shown):
        return "same"
    as_in_eager = failure.kind == "departs" and shown.kind == "not_finite"
    return "gone" if as_in_eager and "departs: " not in _output(finished) else "other"


def result_of_attempt(trial: WorkerRun, failure: FailureShown) -> Result:
    """What happened to the failure in a compile of the whole program."""
    judged = trial.last(events.Judged)
    if failure.kind == "departs" and judged is not None and not judged.departs:
        return "gone"  # eager mode gives the same non-finite values
    try:
        left = of_attempt(trial)
    except ProblemError:  # for example a hang
        return "other"
    return "gone" if left is None else "same" if failure.same_as(left) else "other"
