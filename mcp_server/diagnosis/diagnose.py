"""The procedure: observe, weigh, choose the next observation, until the verdict is final or the budget ends.

Detectors are functions `detect…` in `causes/`, observations are classes in `observe/`. Both are found by
scanning these folders, and their order does not matter.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import anyio

from mcp_server.diagnosis import causes, observe
from mcp_server.diagnosis.causes.compiler import may_be_decided, without_rounding
from mcp_server.diagnosis.causes.environment import remarks_on_file
from mcp_server.diagnosis.kept_files import leave_proof, leave_subject
from mcp_server.diagnosis.next_steps import continued, how_it_failed
from mcp_server.diagnosis.observe import Observation
from mcp_server.diagnosis.observe.calls import run_call
from mcp_server.diagnosis.observe.program import given_call, put_back, recorded_call
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.verdict import another_failure, conclude, confidence, ranked, removing
from mcp_server.diagnosis.words import lines_of
from mcp_server.errors import ProblemError
from mcp_server.model import Attached, NextStep, PackageWorkload, Verdict, Workload
from mcp_server.recorder.replay import TakenCall, captures_in, take_call
from mcp_server.runtime.context import Context
from mcp_server.runtime.failure import BudgetTooShort, read_users_log
from mcp_server.tools.fault_run import ONE_THREAD

Detector = Callable[[DiagnosisState], Iterator[Suspect]]


def _defined_in(folder: ModuleType) -> Iterator[tuple[str, object]]:
    """The objects that the modules of a folder define, by name, without those that they import."""
    for found in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{folder.__name__}.{found.name}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") == module.__name__:
                yield name, value


DETECTORS: tuple[Detector, ...] = tuple(
    value for name, value in _defined_in(causes) if name.startswith("detect") and inspect.isfunction(value)
)
OBSERVATIONS: tuple[type[Observation], ...] = tuple(
    value
    for _, value in _defined_in(observe)
    if isinstance(value, type) and issubclass(value, Observation) and not inspect.isabstract(value)
)


def observations() -> list[Observation]:
    """New instances of all observations, because some count their rounds."""
    return [make() for make in OBSERVATIONS]


# Modules that are needed only to read an exported program. Their import takes 1.3 s of processor time; the
# other modules besides torch take 0.3 s (torch 2.13).
EXPORTED = ("torch._inductor.codecache", "torch._export.serde.serialize")


def import_ahead(case: DiagnosisState, context: Context) -> None:
    """Start importing torch in two processes. The second one has the thread limit that `CheckedRun` needs.

    OpenMP reads its limits when torch is imported, so one process cannot serve all observations.
    """
    if case.workload is not None:
        without = isinstance(case.workload, PackageWorkload) and not case.judged_by_program
        modules = () if without else EXPORTED
        context.expect(**case.surroundings, modules=modules)
        context.expect(**case.surroundings_with({}, ONE_THREAD))


DEFAULT_BUDGET_S = 300.0
CLOSING_S = 0.8  # time to end running processes, and to weigh what is known


async def diagnose_recording(
    context: Context, folder: Path, workload: PackageWorkload, *, budget_s: float, symptom: Symptom
) -> Verdict:
    """A verdict on a recording's most informative call, or on the kernel captures in `folder`.

    Raises `ProblemError`, which says what was not kept, if no call can be repeated.
    """
    if captures := captures_in(folder):
        case = DiagnosisState(workload, budget_s=budget_s, clock=context.cost.clock, symptom=symptom)
        case.captures = captures
        await next(each for each in observations() if each.name == "decompile").act(case, context)
        verdict = _concluded(case, context)
        return verdict.model_copy(update={"remarks": [str(case.by_source), *verdict.remarks]})
    async with context.sharing_imports():
        taken = await take_call(context, folder, workload)
        call = workload.model_copy(update={"inputs": taken.inputs})
        return await diagnose(context, call, budget_s=budget_s, symptom=symptom, taken=taken)


async def diagnose(
    context: Context,
    workload: Workload | None,
    *,
    log: Path | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
    symptom: Symptom | None = None,
    taken: TakenCall | None = None,
    attached: Attached | None = None,
    in_place: bool = False,
) -> Verdict:
    """A verdict on `workload` within `budget_s` seconds.

    Waiting for a GPU does not count. Exports and compiles that make progress do not count either, up to
    `budget_s` seconds. `log` is the output of a failing run, and the only source if there is no workload.
    `symptom` is what the user sees, and the expected outputs. `taken` is the recording that has the inputs.
    `attached` is a running process to look at in place of a workload. Packages that the program overwrote are
    restored at the end, unless `in_place`. Raises `ProblemError` if there is nothing to diagnose, if the
    process cannot be read, or if the expectation does not fit the outputs.
    """
    if workload is None and log is None and attached is None:
        raise ProblemError(
            "nothing to diagnose", allowed="a script, package, exported program, command or log"
        )
    clock = context.cost.clock
    clock.allowance_s = budget_s
    case = DiagnosisState(workload, budget_s=budget_s, clock=clock, symptom=symptom or Symptom(), taken=taken)
    case.attached = attached
    if log is not None:
        case.log, case.log_source = await read_users_log(log), str(log)
    if isinstance(workload, PackageWorkload):
        case.call = recorded_call(workload, taken) if taken is not None else given_call(workload)
    try:
        async with context.sharing_imports():
            import_ahead(case, context)
            await _investigate(case, context)
            await _investigate_next(case, context)
    except anyio.get_cancelled_exc_class():
        case.stopped = True
        case.decisions.append(f"stopped during {', '.join(case.running)}")
        case.put_back = [] if in_place else put_back(case)
        context.knows(_concluded(case, context))
        raise
    finally:
        if not in_place and not case.put_back:
            case.put_back = put_back(case)
    if case.unfit is not None:
        raise case.unfit
    return _concluded(case, context)


async def _investigate_next(case: DiagnosisState, context: Context) -> None:
    """Remove the first cause; if the call then fails in another way, diagnose this second failure."""
    best = next(iter(ranked(case.suspects, case)), None)
    trial, call = another_failure(best, case) if best is not None else None, case.call
    if trial is None or not trial.intervention.changes or call is None or call.updated:
        return
    changed = context.fresh("next") / "inputs.pt"
    extra = {"changes": trial.intervention.changes, "keep_inputs": str(changed)}
    with suppress(ProblemError):
        await run_call(case, context, "changed", extra=extra, record=False)
    if not changed.exists():
        return
    nan = trial.after.failure == "nonfinite"
    symptom = replace(case.symptom, seen="nan") if nan else case.symptom
    workload = case.package_call.model_copy(update={"inputs": changed})
    following = DiagnosisState(workload, budget_s=case.budget_s, clock=case.clock, symptom=symptom)
    following.call = given_call(workload)
    await _investigate(following, context)
    case.following = conclude(detect(following), following, context)


def _concluded(case: DiagnosisState, context: Context) -> Verdict:
    """Return the verdict on what is known now. Write the facts for a report, if the disk permits."""
    try:
        case.artifacts.append(leave_subject(case, context))
    except ProblemError as problem:
        case.decisions.append(f"no report can be made later: {problem}")
    suspects = detect(case)
    verdict = conclude(suspects, case, context)
    if verdict.confirmed is not None and verdict.confidence == "proven":
        verdict = _with_proof(verdict, ranked(suspects, case)[0], case, context)
    if verdict.outcome == "fault":
        parties = [each for each in (verdict.guilty, verdict.crashing) if each is not None]
        launched = next((each for each in parties if each.launch_index is not None), None)
        verdict = verdict.model_copy(update={"program": lines_of(launched, case)})
    told = case.taken.facts if case.taken is not None else []
    told = list(case.process.remarks) if case.process is not None else told
    remarks = [*told, *verdict.remarks, *remarks_on_file(case), *case.put_back]
    steps = [continued(step, case, context.directory.name) for step in verdict.next_steps]
    return with_budget(verdict.model_copy(update={"remarks": remarks, "next_steps": steps}), case, context)


def _with_proof(verdict: Verdict, best: Suspect, case: DiagnosisState, context: Context) -> Verdict:
    """The verdict with `proof.py` as an artifact, if a few lines can repeat its experiment."""
    trial = removing(best, case)
    proof = None
    if trial is not None:
        with suppress(ProblemError):  # the disk rejects the file
            proof = leave_proof(trial, verdict, case, context)
    if proof is None:
        return verdict
    return verdict.model_copy(update={"artifacts": [*verdict.artifacts, proof]})


async def _investigate(case: DiagnosisState, context: Context) -> None:
    """Observe until the verdict is final, nothing more can be learnt, or the budget is spent."""
    available = observations()
    with case.clock.limit(case.seconds_left - CLOSING_S) as budget:
        while case.unfit is None:
            case.suspects = detect(case)
            best = next(iter(ranked(case.suspects, case)), None)
            proven = best is not None and best.harmful and confidence(best, case) == "proven"
            left = [each for each in available if not proven or each.after_proof(case)]
            # Extra observations are worth their time only if a compiler pass may explain the suspect.
            if best is not None and all(each.extra for each in left) and not may_be_decided(best):
                return
            chosen = choose(left, case)
            if not chosen and not proven:
                longer = choose(available, case, whatever_it_takes=True)
                case.cut_short += [each.name for each in longer if not each.extra]
            if not chosen:
                return
            await perform(chosen, case, context)
    if budget.cancelled_caught:
        case.cut_short += case.running
        case.decisions.append(f"the budget of {case.budget_s:g} s ended during {', '.join(case.running)}")


def detect(case: DiagnosisState) -> list[Suspect]:
    """Run every detector on the case as it is now. If the program handled the failure, none is harmful."""
    found = without_rounding([suspect for detector in DETECTORS for suspect in detector(case)], case)
    return [replace(suspect, harmful=False) for suspect in found] if case.handled else found


def choose(
    observations: Sequence[Observation], case: DiagnosisState, *, whatever_it_takes: bool = False
) -> list[Observation]:
    """The best observation, and one that can run at the same time. Empty if none is worth its time.

    An observation longer than the remaining budget is tried only if there is no other and nothing has
    run yet.
    """
    open_ones = [each for each in observations if each.name not in case.done]
    possible = [each for each in open_ones if whatever_it_takes or each.seconds < case.seconds_left]
    gains = [(each.gain(case, case.suspects) / (each.seconds + 1), each) for each in possible]
    gains = [(gain, each) for gain, each in gains if gain > 0]
    best = [each for _, each in sorted(gains, key=lambda pair: (-pair[1].decisive, -pair[0]))][:2]
    if not best and not case.runs and not whatever_it_takes:
        return choose(observations, case, whatever_it_takes=True)
    return best[:1] if any(each.alone for each in best) else best


async def perform(chosen: Sequence[Observation], case: DiagnosisState, context: Context) -> None:
    """Make the chosen observations concurrently. An observation that cannot do its job leaves a note."""
    still = open_categories(case)
    for each in chosen:
        why = f"about {each.seconds:.0f} s{f'; open: {still}' if still else ''}"
        case.done.append(each.name)
        case.decisions.append(f"{each.name} ({why})")
    case.running = [each.name for each in chosen]
    async with anyio.create_task_group() as group:
        for each in chosen:
            group.start_soon(_attempt, each, case, context)


async def _attempt(observation: Observation, case: DiagnosisState, context: Context) -> None:
    try:
        await observation.act(case, context)
    except ProblemError as problem:
        case.notes.append(f"{observation.name}: {problem}")
        case.refused.append(problem)
        if isinstance(problem, BudgetTooShort):
            case.cut_short.append(observation.name)
    except Exception as error:  # one broken observation must not cost the others
        logging.getLogger(__name__).exception("%s broke", observation.name)
        case.notes.append(f"{observation.name} broke: {type(error).__name__}: {error}")


MORE = 4  # factor of the next budget after one that was too short
LEAST_S = 120.0
MOST_S = 86_400.0
MOST_OPEN = 3  # categories that a decision names


def with_budget(verdict: Verdict, case: DiagnosisState, context: Context) -> Verdict:
    """Return `verdict`. If it is not proven, and was stopped or had too little time, add how to continue."""
    proven = verdict.outcome == "fault" and verdict.confidence == "proven"
    if proven or not (case.cut_short or case.stopped):
        return verdict
    at = f" at {context.step}" if context.step else ""
    ended, why, more = f"The diagnosis was stopped{at}", "continue where it was stopped", {}
    if not case.stopped:
        uncounted = {"waiting for a GPU": case.clock.waited_s, "exports and compiles": case.clock.spared_s}
        besides = " and ".join(f"{each:.0f} s of {what}" for what, each in uncounted.items() if each >= 1)
        ended = (
            f"The budget of {case.budget_s:g} s ended{at}{f'; {besides} are not counted' if besides else ''}"
        )
        why, more = (
            "continue where the budget ended",
            {"budget_s": min(MOST_S, max(LEAST_S, MORE * case.budget_s))},
        )
    known = how_it_failed(case) or f"No run has {'failed' if case.runs else 'finished'}."
    step = NextStep(
        why=f"{why}; finished checks are not repeated",
        tool="diagnose",
        arguments={"log": context.directory.name, **more},
    )
    summary = " ".join(filter(None, (verdict.summary.strip(), f"{ended}.", known)))
    return verdict.model_copy(update={"summary": summary, "next_steps": [step, *verdict.next_steps]})


def open_categories(case: DiagnosisState) -> str:
    return ", ".join(list(dict.fromkeys(suspect.category for suspect in case.suspects))[:MOST_OPEN])
