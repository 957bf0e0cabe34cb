"""The calls of a trial in sentences that users read."""

from __future__ import annotations

from mcp_server.diagnosis.interventions.base import Effect, Trial

_FAILS_AGAIN = "and fails again without the change"


def change_in_words(what: str) -> str:
    """The change of an intervention, to put after "the call ends well": `with args[1] clamped to 0..999`."""
    return what.removeprefix("the call ") if what.startswith("the call ") else f"with {what}"


def trial_in_words(trial: Trial) -> str:
    """The calls of a trial in one sentence: as it is, with the change, and without it again."""
    change = change_in_words(trial.intervention.what)
    before, after = trial.before.describe(), trial.after.describe()
    if trial.effect is Effect.NOT_APPLICABLE:
        return f"The call was also made {change}. That says nothing about the cause: {trial.reason or after}."
    if _is_flaky(trial):
        return f"The call was made {change} several times: {trial.reason}."
    start = f"The call fails as it is ({before})"
    if trial.effect is Effect.GONE:
        return f"{start}, ends well {change}, {_FAILS_AGAIN}."
    if trial.effect is Effect.SAME:
        return f"{start} and still fails {change} ({after})."
    reason = trial.reason.removeprefix("with the change it ") or after
    return f"{start}, fails in another way {change} ({reason}), and fails as before without the change."


def fix_in_words(trial: Trial) -> str:
    """What the call gave with a change that removed the failure."""
    change = change_in_words(trial.intervention.what)
    return f"the call {change}: {trial.reason}" if _is_flaky(trial) else f"the call ends well {change}"


def unchanged_in_words(trial: Trial) -> str:
    """That a change left the failure as it was."""
    change = change_in_words(trial.intervention.what)
    if trial.reason:
        return f"the call was also made {change}: {trial.reason}"
    return f"the call still fails in the same way {change} ({trial.after.describe()})"


def _is_flaky(trial: Trial) -> bool:
    """Whether the trial counted failures: a failure that comes each time has no reason for these effects."""
    return bool(trial.reason) and trial.effect in (Effect.GONE, Effect.SAME)
