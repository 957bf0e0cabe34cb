"""The call with its custom operators watched, and once more with their fake functions' promises kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mcp_server.diagnosis.actions.interpret import interpret
from mcp_server.diagnosis.actions.intervene import seen_of, tried_call
from mcp_server.diagnosis.actions.runs import run_call
from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.detectors.operator_results import REPAIRED, SAME
from mcp_server.diagnosis.interventions.base import Effect, Trial
from mcp_server.diagnosis.interventions.run import try_intervention
from mcp_server.diagnosis.own_code import own_operators
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.steps.context import Context, WorkerRun


class WatchOperators:
    """Hold what each custom operator returns against its fake function; see whether a difference matters."""

    name = "watch_operators"
    seconds = 5.0
    alone = False

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.call.operation == "compile" or "plain" not in case.runs:
            return 0.0
        if case.runs["plain"].failure == "timeout" and "trace_launches" not in case.done:
            return 0.0  # it would hang again, and the trace tells where
        return 0.8 if own_operators(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        watched = await run_call(case, context, "operators", extra={"operators": "watch"}, record=False)
        case.operators = watched.worker
        if watched.worker is None or not watched.worker.all("operator"):
            return
        trial = await _trial(case, context, watched)
        if trial.effect in (Effect.SAME, Effect.NOT_APPLICABLE) and not case.equals_eager:
            kept = (
                await interpret(case, context, operators="repair") if case.interpreted is not None else None
            )
            trial = in_eager(kept, trial)
        case.trials[REPAIRED.key] = trial


async def _trial(case: Case, context: Context, watched: RunSeen) -> Trial:
    """The call with the promises kept: whether the failure goes, else whether other values come back."""
    if case.runs["plain"].failure != "none":
        return await try_intervention(context, tried_call(case), REPAIRED)
    repaired = await run_call(case, context, "repaired", extra={"operators": "repair"}, record=False)
    return effect_on_values(case.runs["plain"], watched, repaired)


def in_eager(kept: WorkerRun | None, trial: Trial) -> Trial:
    """What the promises do to the model, where the package does not depend on them but diverges from it.

    Memory that an operator writes without saying so may be read by the model alone: the package, which was
    told of no such write, computes that value again or has it elsewhere.
    """
    compared = kept.last("compared") if kept is not None else None
    if compared is None or not compared["equal"]:
        return replace(trial, effect=Effect.NOT_APPLICABLE)
    what = "the exported program gives what the package gives once the operators keep their promises"
    return replace(trial, effect=Effect.GONE, reason=what)


def effect_on_values(plain: RunSeen, watched: RunSeen, repaired: RunSeen) -> Trial:
    """Whether a call that ends well returns other values once the promises are kept."""
    before, after, again = (seen_of(run) for run in (plain, repaired, watched))
    trial = partial(Trial, REPAIRED, before=before, after=after, again=again)
    if repaired.failure != "none":
        return trial(effect=Effect.NOT_APPLICABLE, reason=f"the call fails then ({repaired.failure})")
    if _digests(plain) != _digests(watched):
        return trial(effect=Effect.NOT_APPLICABLE, reason="the outputs differ from run to run anyway")
    if _digests(watched) == _digests(repaired):
        return trial(effect=Effect.NOT_APPLICABLE, reason=SAME)
    return trial(effect=Effect.GONE, reason="the call returns other values then, and the old ones without it")


def _digests(run: RunSeen) -> list[Any]:
    return [output.get("checksum") for output in run.outputs]
