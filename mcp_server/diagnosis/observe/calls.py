"""Making the call: plain, checked, repeated, and operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_server.diagnosis.causes.concurrency import updated_in_a_copy
from mcp_server.diagnosis.causes.hang import shown_by_trace, to_be_traced
from mcp_server.diagnosis.causes.input_mismatch import to_be_placed
from mcp_server.diagnosis.causes.wrong_output import drawing_launches
from mcp_server.diagnosis.components import operator_missing_here
from mcp_server.diagnosis.observe.launches import as_package
from mcp_server.diagnosis.observe.static import exported_path
from mcp_server.diagnosis.planner import eager_limit, hangs, limit_of
from mcp_server.diagnosis.state import DiagnosisState, RunSeen
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.symptom import refuse_misfit
from mcp_server.diagnosis.value_sources import checked_inputs
from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Finished
from mcp_server.model import PackageWorkload
from mcp_server.probes.build import instrument
from mcp_server.probes.commands import Options
from mcp_server.tools.context import Context, WorkerRun, gpus_of
from mcp_server.tools.failure import read_output
from mcp_server.tools.fault_methods import ONE_THREAD
from mcp_server.tools.run_deterministic import CHECK_INPUTS


def see(label: str, finished: Finished, worker: WorkerRun | None = None, *, process: str = "") -> RunSeen:
    """A finished child with its log read: of all its processes, or of one."""
    return RunSeen(label, finished, read_output(finished.output, process), worker)


async def run_call(
    case: DiagnosisState,
    context: Context,
    label: str,
    *,
    env: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    record: bool = True,
) -> RunSeen:
    """Make the case's call once in the worker; the result is also kept in `case.runs[label]`."""
    assert case.call is not None
    workload = case.workload
    limit = limit_of(case, share=SHARE_OF_HANG if hangs(case) else SHARE)
    done = await context.worker(
        case.call.operation,
        {**case.call.request, **_to_tell(case), **(extra or {})},
        name=label,
        env={STACKS: str(limit.seconds * 0.85), **(workload.env if workload else {}), **(env or {})},
        timeout_s=limit.seconds,
        python=workload.python if workload else None,
        cwd=workload.cwd if workload else None,
        gpus=gpus_of(case.device, int(case.call.request.get("device_index", -1))),
    )
    limit.check(done.finished, "the call")
    seen = replace(see(label, done.finished, done), infinities=case.symptom.seen == "nan")
    if record:
        case.runs[label] = seen
    return seen


def _to_tell(case: DiagnosisState) -> dict[str, Any]:
    asked = updated_in_a_copy(case)
    return {"tell_changes": {str(place): size for place, size in asked.items()}} if asked else {}


SHARE = 0.45  # of what the budget leaves: a call that hangs must leave time to find out where
SHARE_OF_HANG = 0.6  # once the program hung: all that is left to do is to see it again, and where

# Seconds after which a child prints every thread's stack: what a call that hangs is doing.
STACKS = "AOTI_DEBUG_STACKS_AFTER"


class PlainRun:
    """Make the call as it is."""

    name = "run"
    seconds = 6.0
    alone = False

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if to_be_traced(case) or shown_by_trace(case):
            return 0.0  # the launches tell more of a call that hangs, and whether it does by itself
        if to_be_placed(case) and "compare_inputs" not in case.done:
            return 0.0
        return 0.9 if case.call is not None and case.package_error is None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        try:
            asked = case.symptom.request()
            seen = await run_call(case, context, "plain", extra=asked, record=False)
            refuse_misfit(seen, case.symptom)
        except ProblemError as problem:
            if problem.value in (str(case.symptom.expect), " ".join(case.symptom.check) or None):
                case.unfit = problem
            raise
        missing = operator_missing_here(seen, case)
        if missing:
            case.call = None
            case.notes.append(missing)
        else:
            case.runs["plain"] = seen


class CheckedRun:
    """Make the call with AOTInductor's own input checks: a second, independent view of a bad input."""

    name = "run_with_input_checks"
    seconds = 6.0
    alone = False

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if case.call is None or "plain" not in case.runs:
            return 0.0
        if "look_at_indices" not in case.done and checked_inputs(case):
            return 0.0  # looking at the indices is cheaper, and tells more of an index assertion
        if case.runs["plain"].failure == "timeout" and not case.mismatches:
            return 0.0  # it would hang again
        contract = {"input_mismatch", "device_mismatch", "shape_out_of_range", "custom_op"}
        return 0.8 if any(h.category in contract for h in open_suspects) or not case.mismatches else 0.3

    async def act(self, case: DiagnosisState, context: Context) -> None:
        await run_call(case, context, "checked", env={**CHECK_INPUTS, **ONE_THREAD})


class Interpret:
    """See which operator of the model raises, makes NaN, or breaks its fake function's promise."""

    name = "interpret"
    seconds = 4.0
    alone = False

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.ran_out_of_memory:
            return 0.0  # eager keeps every value between operators, and so needs more
        if to_be_traced(case) or shown_by_trace(case):
            return 0.0  # eager may hang alike
        return 1.0 if _program(case) is not None and _inputs(case) is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        case.interpreted = await interpret(case, context)


async def interpret(case: DiagnosisState, context: Context, **more: str) -> WorkerRun:
    """The worker's run of the exported program on that call; `more` is added to its request."""
    assert case.call is not None
    updated = any(step["do"] == "constants" for step in case.call.request.get("steps", ()))
    with_package = {} if updated else _package(case.call.request)
    return await context.worker(
        "interpret",
        {
            "exported": _program(case),
            "inputs": _inputs(case),
            "extra_imports": case.call.request.get("extra_imports", []),
            **with_package,
            **more,
        },
        **case.surroundings,
        timeout_s=eager_limit(case),
    )


def _program(case: DiagnosisState) -> Path | None:
    return exported_path(case)


def _inputs(case: DiagnosisState) -> Any:
    if case.call is None:
        return None
    return case.call.inputs if case.call.inputs is not None else case.call.request.get("inputs")


def _package(request: dict[str, Any]) -> dict[str, Any]:
    """What loading takes of a replay's request."""
    names = ("package", "model_name", "device_index")
    return {name: request[name] for name in names if name in request} if not request.get("library") else {}


LONGEST_CALL_S = 15.0
MOST_BYTES = 1 << 30  # of a package that is loaded four times


class RepeatCall:
    """Make a call that ended well three times, each in a fresh load, the last with new memory filled anew."""

    name = "repeat_call"
    seconds = 5.0
    alone = False

    def gain(self, case: DiagnosisState, open_ones: Sequence[Suspect]) -> float:
        plain = case.runs.get("plain")
        if plain is None or plain.failure != "none" or not _cheap(case, plain.finished.wall_s):
            return 0.0
        explained = any(h.harmful and not h.weak for h in open_ones)
        return 0.0 if explained else 0.25

    async def act(self, case: DiagnosisState, context: Context) -> None:
        case.repeated = await _repeat(case, context, "repeats")


class WatchRepeats:
    """The same with every launch watched, to see where the outputs part."""

    name = "watch_repeats"
    seconds = 14.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        unexplained = case.differs_in("second") and not drawing_launches(case)
        return 0.7 if unexplained or case.reads_unset else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        workload = as_package(case)
        python = context.python_for(workload)
        rebuilt = await instrument(workload.package, Options(), context, python=python, env=workload.env)
        env = {"LD_PRELOAD": " ".join(rebuilt.preload)} if rebuilt.preload else {}
        more = {"package": rebuilt.package, "probes": True}
        case.repeated_watched = await _repeat(case, context, "repeats-watched", more, env)


def _cheap(case: DiagnosisState, wall_s: float) -> bool:
    """A package on the CPU, whose memory the C library gives, and which is soon loaded and called again."""
    package = case.call.package if case.call is not None else None
    if not isinstance(case.workload, PackageWorkload) or package is None or case.device != "cpu":
        return False
    return wall_s < LONGEST_CALL_S and package.stat().st_size < MOST_BYTES


async def _repeat(
    case: DiagnosisState,
    context: Context,
    name: str,
    more: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> WorkerRun:
    assert case.call is not None and case.workload is not None
    given = case.surroundings
    limit = limit_of(case)
    done = await context.worker(
        "repeat",
        {**case.call.request, **(more or {})},
        name=name,
        **{**given, "env": {**given["env"], **(env or {})}},
        timeout_s=limit.seconds,
    )
    limit.check(done.finished, "the repeated call")
    context.cost.runs += len(done.all("calling")) - 1 if not done.finished.reused else 0
    return done
