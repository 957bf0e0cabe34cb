"""Tries interventions: the failing call again without a suspect, and again with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mcp_server.diagnosis.actions.runs import run_call
from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.commands import call_words
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, Trial
from mcp_server.diagnosis.interventions.plan import TriedCall
from mcp_server.diagnosis.interventions.run import try_interventions
from mcp_server.diagnosis.judge import is_cause, ranked, untried
from mcp_server.diagnosis.limits import limit_of
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.steps.context import Context
from mcp_server.steps.leases import gpus_of
from mcp_server.worker.trial_facts import CallFacts

MAX_ROUNDS = 4
MAX_TOGETHER = 4  # interventions of one round, which share a loaded package
MAX_COMBINED = 3  # suspects that are removed together
SHARE = 0.4  # of what the budget leaves, for one round


class TryInterventions:
    """Remove the leading suspects, one at a time, and see whether the failure goes and comes back."""

    seconds = 4.0
    alone = False

    def __init__(self) -> None:
        self.rounds = 0

    @property
    def name(self) -> str:
        return f"intervene_{self.rounds}"

    def gain(self, case: Case, open_suspects: Sequence[Suspect]) -> float:
        if self.rounds >= MAX_ROUNDS or not can_intervene(case):
            return 0.0
        return 0.85 if list(_wanted(case, open_suspects)) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        self.rounds += 1
        wanted = list(_wanted(case, case.suspects))
        if _by_program(case):
            wanted = wanted[:1]
            trials = [await _try_against_program(case, context, each, self.rounds) for each in wanted]
        else:
            trials = await try_interventions(context, tried_call(case), wanted)
        case.trials |= {trial.intervention.key: trial for trial in trials}


def can_intervene(case: Case) -> bool:
    """Whether there is a call that fails when it is made again: only a failure can be made to go away."""
    plain = case.runs.get("plain")
    if plain is None or case.call is None or case.call.operation == "compile":
        return False
    return plain.failure != "none" or _by_program(case)


def tried_call(case: Case) -> TriedCall:
    """The failing call, as the trials take it: with the reference of the program where it has one."""
    assert case.call is not None
    workload, request = case.workload, dict(case.call.request)
    actual = request.pop("actual", None)
    for name in ("held", "returned"):
        request.pop(name, None)
    return TriedCall(
        request=request,
        env=dict(workload.env) if workload is not None else {},
        python=workload.python if workload is not None else None,
        cwd=workload.cwd if workload is not None else None,
        timeout_s=limit_of(case, share=SHARE).seconds,
        gpus=gpus_of(case.device, int(case.call.request.get("device_index", -1))),
        expect=Path(str(actual)) if actual is not None else None,
        spelling=call_words(case),
    )


def _wanted(case: Case, suspects: Sequence[Suspect]) -> Iterator[Intervention]:
    """Interventions of the leading suspects that were not tried, then what removes several at once."""
    found: dict[str, Intervention] = {}
    order = ranked(suspects, case)
    for suspect in order:
        if is_cause(suspect, case):
            break
        found |= {each.key: each for each in untried(suspect, case)}
    if not found:
        found = {each.key: each for each in _combined(suspects, case)}
    yield from list(found.values())[:MAX_TOGETHER]


def _combined(suspects: Sequence[Suspect], case: Case) -> Iterator[Intervention]:
    """All input changes that alone left the failure as it was, together: two causes can hide each other.

    Not where one alone made it go away.
    """
    tried = [
        case.trials[s.intervention.key]
        for s in suspects
        if s.intervention and s.intervention.key in case.trials
    ]
    if any(trial.effect is Effect.GONE for trial in tried):
        return
    parts = {
        trial.intervention.key: trial.intervention
        for trial in tried
        if trial.intervention.kind is Kind.INPUT and trial.effect in (Effect.SAME, Effect.CHANGED)
    }
    if not 1 < len(parts) <= MAX_COMBINED:
        return
    both = combined(list(parts.values()))
    if both.key not in case.trials:
        yield both


def combined(parts: Sequence[Intervention]) -> Intervention:
    """Several changes of inputs made at once."""
    return Intervention(
        key="+".join(sorted(each.key for each in parts)),
        kind=Kind.INPUT,
        what=" and ".join(each.what for each in parts),
        changes=tuple(change for each in parts for change in each.changes),
        after_code="; ".join(each.after_code for each in parts if each.after_code),
        spelling=tuple(word for each in parts for word in each.spelling),
    )


def _by_program(case: Case) -> bool:
    """Whether only what the program held, or an input that stays as it was, shows that the call is wrong."""
    plain = case.runs.get("plain")
    if plain is None or plain.failure not in ("none", "differs"):
        return False
    missed = plain.failure == "none" and not all(plain.held.values())
    return missed or bool(plain.left_alone)


async def _try_against_program(
    case: Case, context: Context, intervention: Intervention, number: int
) -> Trial:
    """The call with the change, and again without it, each held against what the program held."""
    changes = [change.request() for change in intervention.changes]
    extra = {"changes": changes, **intervention.options.request()}
    after = await run_call(case, context, f"with-{number}", extra=extra, record=False)
    again = await run_call(case, context, f"again-{number}", record=False)
    return against_program(intervention, case.runs["plain"], after, again)


def against_program(intervention: Intervention, before: RunSeen, after: RunSeen, again: RunSeen) -> Trial:
    """The trial of a change by what the program held beside the call, from three runs of it."""
    effect, reason = _effect_on_program(intervention, before, after, again)
    return Trial(intervention, effect, seen_of(before), seen_of(after), seen_of(again), reason=reason)


def _effect_on_program(
    intervention: Intervention, before: RunSeen, after: RunSeen, again: RunSeen
) -> tuple[Effect, str]:
    """Whether the call gives now what the program expected, or changes the input that it left as it was."""
    if after.failure not in ("none", "differs") or again.failure not in ("none", "differs"):
        return Effect.NOT_APPLICABLE, f"the call fails then ({after.failure})"
    moved = next((change.input for change in intervention.changes if change.change == "align"), None)
    if moved is not None:
        cured = moved in before.left_alone and moved in after.changed and moved in again.left_alone
        return (Effect.GONE, "the input is changed now") if cured else (Effect.SAME, "")
    reached = [n for n, equal in after.held.items() if equal and not before.held.get(n, True)]
    if not reached or any(again.held.get(name, False) for name in reached):
        return Effect.NOT_APPLICABLE, "it gives nothing that the program held"
    name = next((name for name in reached if not name.startswith("_")), reached[0])
    return Effect.GONE, f"the call gives then what the program held as {name!r}"


def seen_of(run: RunSeen) -> Seen:
    """A run of the call that came back, as trials tell it."""
    if run.failure in ("none", "differs", "nonfinite"):
        return Seen("ok", CallFacts(run.label, "", "ok"))
    return Seen("raised", text=run.root.text if run.root else run.failure, family=run.family or "")
