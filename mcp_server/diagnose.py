"""The procedure: observe, weigh, choose the next observation, until a verdict stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from mcp_server.diagnosis.actions.alone import RunAlone
from mcp_server.diagnosis.actions.capture import CaptureProgram
from mcp_server.diagnosis.actions.compare import CompareLaunches
from mcp_server.diagnosis.actions.compile_exported import CompileExported
from mcp_server.diagnosis.actions.exported_program import ReadExported
from mcp_server.diagnosis.actions.generated import ReadGeneratedKernel
from mcp_server.diagnosis.actions.index_values import LookAtIndices
from mcp_server.diagnosis.actions.inputs import CompareInputs
from mcp_server.diagnosis.actions.interpret import Interpret
from mcp_server.diagnosis.actions.intervene import TryInterventions
from mcp_server.diagnosis.actions.locate import LocateFault
from mcp_server.diagnosis.actions.machine import CheckMachine
from mcp_server.diagnosis.actions.operators import WatchOperators
from mcp_server.diagnosis.actions.package_file import OpenPackage
from mcp_server.diagnosis.actions.repeat import RepeatCall, WatchRepeats
from mcp_server.diagnosis.actions.runs import CheckedRun, PlainRun
from mcp_server.diagnosis.actions.trace import TraceLaunches
from mcp_server.diagnosis.actions.try_source import TryPadding, TryWider
from mcp_server.diagnosis.actions.watch_launches import WatchLaunches
from mcp_server.diagnosis.budget import with_budget
from mcp_server.diagnosis.case import CallSpec, Case
from mcp_server.diagnosis.detectors import (
    aliased,
    allocation,
    altered_constants,
    argument_order,
    bad_values,
    beside,
    child_end,
    concurrency,
    constants,
    contract,
    custom_op,
    data_size,
    departure,
    died_inside,
    division,
    eager,
    endless_loop,
    fixed_arguments,
    from_log,
    generated,
    index,
    last_launch,
    limit_signals,
    loading,
    lost_update,
    machine,
    memory,
    nan_index,
    narrow,
    no_end,
    operator_error,
    operator_index,
    operator_results,
    other_card,
    outside,
    overwritten,
    own_check,
    padding,
    process_limits,
    random_numbers,
    refusal,
    rewritten,
    runtime_value,
    scatter,
    sharing,
    small_stack,
    streams,
    unmapped,
    unsteady,
    viewed_constants,
)
from mcp_server.diagnosis.imports_ahead import import_ahead
from mcp_server.diagnosis.judge import confidence, ranked
from mcp_server.diagnosis.planner import Action, choose, perform, too_long
from mcp_server.diagnosis.subject import leave_subject
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.verdict import conclude
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload, Verdict, Workload
from mcp_server.steps.context import Context
from mcp_server.steps.logs import read_users_log
from mcp_server.steps.requests import run_request

DEFAULT_BUDGET_S = 300.0
CLOSING_S = 0.8  # to end what runs, and to weigh what is known

Detector = Callable[[Case], Iterator[Suspect]]
DETECTORS: tuple[Detector, ...] = (
    from_log.detect,
    own_check.detect,
    outside.detect,
    loading.detect,
    lost_update.detect,
    overwritten.detect,
    contract.detect,
    other_card.detect,
    argument_order.detect,
    fixed_arguments.detect,
    constants.detect,
    altered_constants.detect,
    viewed_constants.detect,
    beside.detect,
    child_end.detect,
    concurrency.detect,
    no_end.detect,
    process_limits.detect,
    limit_signals.detect,
    small_stack.detect,
    endless_loop.detect,
    died_inside.detect,
    unmapped.detect,
    custom_op.detect,
    operator_results.detect,
    operator_error.detect,
    allocation.detect,
    data_size.detect,
    generated.detect,
    index.detect,
    nan_index.detect,
    operator_index.detect,
    division.detect,
    runtime_value.detect,
    refusal.detect,
    bad_values.detect,
    scatter.detect,
    sharing.detect,
    rewritten.detect,
    aliased.detect,
    streams.detect,
    eager.detect,
    departure.detect,
    random_numbers.detect,
    unsteady.detect,
    padding.detect,
    narrow.detect,
    memory.detect,
    last_launch.detect,
    machine.detect,
)


def actions() -> list[Action]:
    """Everything that can be observed, in no particular order."""
    return [
        CaptureProgram(),
        RunAlone(),
        CompileExported(),
        OpenPackage(),
        ReadExported(),
        CompareInputs(),
        PlainRun(),
        CheckedRun(),
        Interpret(),
        WatchOperators(),
        RepeatCall(),
        WatchRepeats(),
        CompareLaunches(),
        ReadGeneratedKernel(),
        LookAtIndices(),
        WatchLaunches(),
        LocateFault(),
        TraceLaunches(),
        TryPadding(),
        TryWider(),
        CheckMachine(),
        TryInterventions(),
    ]


async def diagnose(
    context: Context,
    workload: Workload | None,
    *,
    log: Path | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
) -> Verdict:
    """A verdict on `workload`, within `budget_s` seconds, not counting those in which another has the GPU.

    `log` is what a failing run printed: with no workload it is all there is, and a package workload without
    inputs is then read beside it. Raises `ProblemError` when neither is given.
    """
    if workload is None and log is None:
        raise ProblemError(
            "nothing to diagnose", allowed="a script, package, exported program, command or log"
        )
    case = Case(workload, budget_s, context.cost.clock)
    if log is not None:
        case.log, case.log_source = await read_users_log(log), str(log)
    case.call = _direct_call(workload)
    try:
        async with context.sharing_imports():
            import_ahead(case, context)
            await investigate(case, context)
    except anyio.get_cancelled_exc_class():
        case.decisions.append(f"stopped during {', '.join(case.running)}")
        context.knows(_concluded(case, context))
        raise
    return _concluded(case, context)


def _concluded(case: Case, context: Context) -> Verdict:
    """The verdict for now, with the subject of the job beside it, if the disk takes that."""
    try:
        case.artifacts.append(leave_subject(case, context))
    except ProblemError as problem:
        case.decisions.append(f"no report can be made later: {problem}")
    return with_budget(conclude(detect(case), case, context), case, context)


async def investigate(case: Case, context: Context) -> None:
    """Observe until a verdict stands, nothing more can be learnt, or the budget is spent."""
    available = actions()
    with case.clock.limit(case.seconds_left - CLOSING_S) as budget:
        while not _settled(suspects := detect(case), case):
            case.suspects = suspects
            choices = choose(available, case, suspects)
            if not choices:
                case.cut_short += too_long(available, case, suspects)
                return
            await perform(choices, case, context)
    if budget.cancelled_caught:
        case.cut_short += case.running
        case.decisions.append(f"the budget of {case.budget_s:g} s ended during {', '.join(case.running)}")


def detect(case: Case) -> list[Suspect]:
    """What every detector makes of the case as it is now; a call that the program handled did no harm."""
    found = [suspect for detector in DETECTORS for suspect in detector(case)]
    return [replace(suspect, harmful=False) for suspect in found] if case.handled else found


def _settled(suspects: list[Suspect], case: Case) -> bool:
    best = next(iter(ranked(suspects, case)), None)
    return best is not None and best.harmful and confidence(best, case) == "proven"


def _direct_call(workload: Workload | None) -> CallSpec | None:
    """The call that a package workload is."""
    if not isinstance(workload, PackageWorkload):
        return None
    request = run_request(workload) if workload.inputs is not None else _load_request(workload)
    inputs = workload.inputs if isinstance(workload.inputs, Path) else None
    return CallSpec("run", request, workload.package, inputs)


def _load_request(workload: PackageWorkload) -> dict[str, Any]:
    """The package loaded, and not called."""
    return {
        "package": workload.package,
        "model_name": workload.model_name,
        "extra_imports": workload.extra_imports,
    }
