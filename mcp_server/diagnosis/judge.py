"""Weighs suspects: which is a cause, which a bystander, and how sure that is.

`proven` is earned in two ways only: the failure went with the cause and came back with it, or the system
itself refused and named the component (`refusals`). How many instruments point at a suspect proves nothing,
and the failure is never evidence for a cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Trial
from mcp_server.diagnosis.refusals import REFUSALS
from mcp_server.diagnosis.suspect import Instrument, Suspect
from mcp_server.model import Confidence, RuledOut

ORDER: tuple[Confidence, ...] = ("possible", "likely", "proven")


def merged(suspects: Iterable[Suspect]) -> list[Suspect]:
    """One suspect per cause, with the evidence of all that saw it."""
    found: dict[str, Suspect] = {}
    for new in suspects:
        known = found.get(new.key)
        found[new.key] = _joined(known, new) if known else new
    return list(found.values())


def _joined(a: Suspect, b: Suspect) -> Suspect:
    """The stronger of two views of one cause, with what the other adds."""
    main, other = (a, b) if _detail(a) >= _detail(b) else (b, a)
    return replace(
        main,
        evidence=tuple({e.fact: e for e in (*main.evidence, *other.evidence)}.values()),
        crashing=main.crashing or other.crashing,
        fix=main.fix or other.fix,
        intervention=main.intervention or other.intervention,
        refusal=main.refusal or other.refusal,
        observed=main.observed or other.observed,
        harmful=main.harmful or other.harmful,
        only_in_program=main.only_in_program and other.only_in_program,
    )


def _detail(suspect: Suspect) -> tuple[bool, bool, int, bool]:
    """How much a view of a cause says: a log's view is the least specific, and names no launch."""
    from_log_alone = suspect.instruments == {Instrument.LOG}
    return not suspect.weak, not from_log_alone, suspect.level, suspect.guilty.launch_index is not None


def trials_of(suspect: Suspect, case: Case) -> list[Trial]:
    """What came of the interventions that would remove it, as far as they were tried."""
    asked = [suspect.intervention, *suspect.parts] if suspect.intervention is not None else []
    return [case.trials[each.key] for each in asked if each is not None and each.key in case.trials]


def untried(suspect: Suspect, case: Case) -> list[Intervention]:
    """The interventions that are left to try."""
    asked = [suspect.intervention, *suspect.parts] if suspect.intervention is not None else []
    return [each for each in asked if each is not None and each.key not in case.trials]


def is_bystander(suspect: Suspect, case: Case) -> bool:
    """Whether the call fails in the same way without it."""
    if any(trial.effect is Effect.SAME for trial in trials_of(suspect, case)):
        return True
    return suspect.only_in_program and case.fails_alike_alone


def is_cause(suspect: Suspect, case: Case) -> bool:
    """Whether the failure went with it and came back with it, or the system itself named it."""
    trials = trials_of(suspect, case)
    if trials and not untried(suspect, case) and all(_decides(trial) for trial in trials):
        return True
    return suspect.refusal in REFUSALS and case.reproduced


def _decides(trial: Trial) -> bool:
    """Whether the failure went with the change and came back; how a process dies may differ by itself."""
    definite = (
        trial.effect is Effect.GONE or trial.before.ended == "raised" or trial.after.failure == "differs"
    )
    return trial.proves and definite


def confidence(suspect: Suspect, case: Case) -> Confidence:
    """`proven` for a cause; `likely` where an instrument saw the mechanism itself; else `possible`."""
    if suspect.weak:
        return "possible"
    if is_cause(suspect, case):
        return "proven"
    return "likely" if suspect.observed else "possible"


def ranked(suspects: Iterable[Suspect], case: Case) -> list[Suspect]:
    """Those that are no bystanders, the best first.

    What did harm comes before what did none, and candidates of a list last. A proven cause comes before all
    that is not proven; of the others the nearest to the root cause comes first, then the surest.
    """
    alive = [s for s in merged(suspects) if not is_bystander(s, case) and (s.harmful or not s.weak)]
    return sorted(alive, key=lambda suspect: _rank(suspect, case), reverse=True)


def _rank(suspect: Suspect, case: Case) -> tuple[bool, bool, bool, int, int, int]:
    sure = confidence(suspect, case)
    return (
        suspect.harmful,
        not suspect.weak,
        sure == "proven",
        suspect.level,
        ORDER.index(sure),
        len(suspect.instruments - {Instrument.LOG}),
    )


def bystanders(suspects: Iterable[Suspect], case: Case) -> list[RuledOut]:
    """What is out of order and does no harm here, each with the run that cleared it."""
    return [
        RuledOut(hypothesis=s.summary, by=_cleared_by(s, case))
        for s in merged(suspects)
        if is_bystander(s, case)
    ]


def _cleared_by(suspect: Suspect, case: Case) -> str:
    for trial in trials_of(suspect, case):
        if trial.effect is Effect.SAME:
            return f"{trial.intervention.what} still fails in the same way: {trial.after.describe()}"
    return "the call made again by itself, in one thread and on inputs of its own, fails in the same way"
