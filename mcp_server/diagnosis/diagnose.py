"""The procedure: observe, weigh, choose the next observation, until a verdict stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from mcp_server.diagnosis.planner import choose, perform, with_budget
from mcp_server.diagnosis.ranking import confidence, ranked
from mcp_server.diagnosis.registry import DETECTORS, observations
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.subject import leave_subject
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.symptom import Symptom
from mcp_server.diagnosis.verdict import conclude
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload, Verdict, Workload
from mcp_server.tools.context import Context
from mcp_server.tools.failure import read_users_log
from mcp_server.tools.fault_methods import ONE_THREAD
from mcp_server.tools.requests import run_request

# What reading an exported program imports beyond torch, most of the time that it takes (1.3 s of processor
# time, and 0.3 s for the rest, torch 2.13). A package alone is not read with them.
EXPORTED = ("torch._inductor.codecache", "torch._export.serde.serialize")


def import_ahead(case: DiagnosisState, context: Context) -> None:
    """One import for the requests of most observations, then one with the threads of `CheckedRun`.

    OpenMP reads its limits when torch is imported, so that the two cannot be one.
    """
    if case.workload is not None:
        without = isinstance(case.workload, PackageWorkload) and not case.judged_by_program
        modules = () if without else EXPORTED
        context.expect(**case.surroundings, modules=modules)
        context.expect(**case.surroundings_with({}, ONE_THREAD))


DEFAULT_BUDGET_S = 300.0
CLOSING_S = 0.8  # to end what runs, and to weigh what is known


async def diagnose(
    context: Context,
    workload: Workload | None,
    *,
    log: Path | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
    symptom: Symptom | None = None,
) -> Verdict:
    """A verdict on `workload`, within `budget_s` seconds, not counting those in which another has the GPU.

    `log` is what a failing run printed: with no workload it is all there is, and a package workload without
    inputs is then read with it. `symptom` is what the user sees, and what the outputs are to be. Raises
    `ProblemError` when neither is given, and for an expectation that cannot be one of this call.
    """
    if workload is None and log is None:
        raise ProblemError(
            "nothing to diagnose", allowed="a script, package, exported program, command or log"
        )
    case = DiagnosisState(workload, budget_s, context.cost.clock, symptom=symptom or Symptom())
    if log is not None:
        case.log, case.log_source = await read_users_log(log), str(log)
    if isinstance(workload, PackageWorkload):
        inputs = workload.inputs if isinstance(workload.inputs, Path) else None
        # Without inputs the package is loaded, and not called.
        request: dict[str, Any] = {
            "package": workload.package,
            "model_name": workload.model_name,
            "extra_imports": workload.extra_imports,
        }
        if workload.inputs is not None:
            request = run_request(workload)
        case.call = CallSpec("run", request, workload.package, inputs)
    try:
        async with context.sharing_imports():
            import_ahead(case, context)
            await _investigate(case, context)
    except anyio.get_cancelled_exc_class():
        case.decisions.append(f"stopped during {', '.join(case.running)}")
        context.knows(_concluded(case, context))
        raise
    if case.unfit is not None:
        raise case.unfit
    return _concluded(case, context)


def _concluded(case: DiagnosisState, context: Context) -> Verdict:
    """The verdict for now; what a report needs is left in the job's directory, if the disk takes it."""
    try:
        case.artifacts.append(leave_subject(case, context))
    except ProblemError as problem:
        case.decisions.append(f"no report can be made later: {problem}")
    return with_budget(conclude(detect(case), case, context), case, context)


async def _investigate(case: DiagnosisState, context: Context) -> None:
    """Observe until a verdict stands, nothing more can be learnt, or the budget is spent."""
    available = observations()
    with case.clock.limit(case.seconds_left - CLOSING_S) as budget:
        while case.unfit is None:
            case.suspects = detect(case)
            best = next(iter(ranked(case.suspects, case)), None)
            if best is not None and best.harmful and confidence(best, case) == "proven":
                return
            choices = choose(available, case, case.suspects)
            if not choices:
                longer = choose(available, case, case.suspects, whatever_it_takes=True)
                case.cut_short += [each.observation.name for each in longer if not each.observation.extra]
                return
            await perform(choices, case, context)
    if budget.cancelled_caught:
        case.cut_short += case.running
        case.decisions.append(f"the budget of {case.budget_s:g} s ended during {', '.join(case.running)}")


def detect(case: DiagnosisState) -> list[Suspect]:
    """What every detector makes of the case as it is now; a call that the program handled did no harm."""
    found = [suspect for detector in DETECTORS for suspect in detector(case)]
    return [replace(suspect, harmful=False) for suspect in found] if case.handled else found
