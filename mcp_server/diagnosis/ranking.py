"""Weighs suspects: which is a cause, which a bystander, and how sure that is; and what speaks for health.

`proven` is earned in two ways only: the failure went with the cause and came back with it, or the system
itself refused and named the component (`refusals`). How many instruments point at a suspect proves nothing,
and the failure is never evidence for a cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mcp_server.diagnosis.components import own_code
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Trial, unchanged_in_words
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import REFUSALS, Instrument, Suspect
from mcp_server.model import Confidence, Evidence, PackageWorkload, RuledOut
from mcp_server.plurals import counted

ORDER: tuple[Confidence, ...] = ("possible", "likely", "proven")


def merged(suspects: Iterable[Suspect]) -> list[Suspect]:
    """One suspect per cause: the most specific view of it, with the evidence of all that saw it."""
    views: dict[str, list[Suspect]] = {}
    for suspect in suspects:
        views.setdefault(suspect.key, []).append(suspect)
    found = []
    for of_one_cause in views.values():
        # All at once: joined in pairs, the result would depend on which detector came first.
        joined, *others = sorted(of_one_cause, key=_detail, reverse=True)
        for other in others:
            joined = replace(
                joined,
                evidence=tuple({e.fact: e for e in (*joined.evidence, *other.evidence)}.values()),
                crashing=joined.crashing or other.crashing,
                fix=joined.fix or other.fix,
                intervention=joined.intervention or other.intervention,
                refusal=joined.refusal or other.refusal,
                observed=joined.observed or other.observed,
                harmful=joined.harmful or other.harmful,
                only_in_program=joined.only_in_program and other.only_in_program,
            )
        found.append(joined)
    return found


def _detail(suspect: Suspect) -> tuple[bool, bool, int, bool]:
    """How much a view of a cause says: a log's view is the least specific, and names no launch."""
    from_log_alone = suspect.instruments == {Instrument.LOG}
    return not suspect.weak, not from_log_alone, suspect.level, suspect.guilty.launch_index is not None


def trials_of(suspect: Suspect, case: DiagnosisState) -> list[Trial]:
    """What came of the interventions that would remove it, as far as they were tried."""
    return [case.trials[each.key] for each in suspect.interventions if each.key in case.trials]


def untried(suspect: Suspect, case: DiagnosisState) -> list[Intervention]:
    """The interventions that are left to try."""
    return [each for each in suspect.interventions if each.key not in case.trials]


def is_bystander(suspect: Suspect, case: DiagnosisState) -> bool:
    """Whether the call fails in the same way without it."""
    if any(trial.effect is Effect.SAME for trial in trials_of(suspect, case)):
        return True
    script, plain = case.script_run, case.plain_run
    if not suspect.only_in_program or script is None or plain is None or script.failure != plain.failure:
        return False
    # The call by itself fails as the program did: nothing around it is needed for that.
    same = script.family is None or plain.family is None or script.family == plain.family
    return same and plain.failure not in ("none", "differs", "timeout")


def is_cause(suspect: Suspect, case: DiagnosisState) -> bool:
    """Whether the failure went with it and came back with it, or the system itself named it."""
    trials = trials_of(suspect, case)
    decided = trials and not untried(suspect, case) and all(_decides(trial) for trial in trials)
    # A smaller call may have ended well for needing less memory alone.
    memory = suspect.leaves_out and suspect.category != "out_of_memory" and case.ran_out_of_memory
    # A log alone is no refusal that was seen here.
    reproduced = case.log is None or bool(case.runs) or case.package_error is not None
    return (bool(decided) and not memory) or (suspect.refusal in REFUSALS and reproduced)


def _decides(trial: Trial) -> bool:
    """Whether the failure went with the change and came back; how a process dies may differ by itself."""
    definite = (
        trial.effect is Effect.GONE or trial.before.ended == "raised" or trial.after.failure == "differs"
    )
    return trial.proves and definite and not trial.intervention.hides


def confidence(suspect: Suspect, case: DiagnosisState) -> Confidence:
    """`proven` for a cause; `likely` where an instrument saw the mechanism itself; else `possible`."""
    if suspect.weak:
        return "possible"
    if is_cause(suspect, case):
        return "proven"
    return "likely" if suspect.observed else "possible"


def ranked(suspects: Iterable[Suspect], case: DiagnosisState) -> list[Suspect]:
    """Those that are no bystanders, the best first.

    Harmful ones come before harmless ones, and weak ones last. Proven causes come first; of the others the
    one nearest to the root cause, then the surest.
    """

    def rank(suspect: Suspect) -> tuple[bool, bool, bool, bool, int, int, int]:
        sure = confidence(suspect, case)
        return (
            suspect.harmful,
            not suspect.weak,
            sure == "proven",
            sure == "proven" and not suspect.leaves_out,
            suspect.level,
            ORDER.index(sure),
            len(suspect.instruments - {Instrument.LOG}),
        )

    alive = [s for s in merged(suspects) if not is_bystander(s, case) and (s.harmful or not s.weak)]
    return sorted(alive, key=rank, reverse=True)


def bystanders(suspects: Iterable[Suspect], case: DiagnosisState) -> list[RuledOut]:
    """What is out of order and does no harm here, each with the run that cleared it."""
    found = []
    for suspect in merged(suspects):
        if is_bystander(suspect, case):
            same = (trial for trial in trials_of(suspect, case) if trial.effect is Effect.SAME)
            by = next((unchanged_in_words(trial) for trial in same), FAILS_ALONE)
            found.append(RuledOut(hypothesis=suspect.summary, by=by))
    return found


FAILS_ALONE = (
    "the call fails in the same way when it is made alone, in one thread, on its own copy of the inputs"
)
NO_REFERENCE = (
    "The numbers themselves were not checked, because there was no reference to compare them with. "
    "compare_with_eager compares them with the exported program."
)
MOST_NAMED = 3  # of the user's own kernels and operators


def health_summary(case: DiagnosisState) -> str:
    """What was tried without finding a fault, and what could not be."""
    outputs = "finite outputs"
    if case.outputs_nan:
        outputs = "NaN in its outputs, as in those of its exported program,"
    elif case.outputs_nonfinite:
        outputs = "minus infinity in its outputs, as masks use it,"
    fit = " and inputs that fit"
    if case.mismatches:
        more = f" ({len(case.mismatches) - 1} more)" if len(case.mismatches) > 1 else ""
        fit = f". One thing does not fit: {case.mismatches[0].sentence}{more}; the package did not refuse it"
    elif case.package is not None and not case.package.signature.known:
        fit = "; the package does not say which inputs it takes, so the inputs were not compared with it"
    sentences = [f"No fault found: the workload ran to the end with {outputs}{fit}."]
    plain = case.plain_run
    if plain is not None and plain.as_expected:
        return f"{sentences[0]} The outputs are what is expected of them."
    if compared(case):
        return sentences[0]
    # What is known of outputs without a reference, and what nobody can know.
    if case.differs_in("second"):
        sentences.append("It returns different outputs each time because it draws random numbers.")
    elif case.differs_in("second") is False:
        sentences.append("Repeated, it returns the same outputs.")
    sentences.append(NO_REFERENCE)
    own = own_code(case)
    if own:
        names = ", ".join(own[:MOST_NAMED])
        sentences.append(
            f"Only the author knows what {names} should compute; compare with plain PyTorch operators."
        )
    # The package has arguments that are no tensors as they were at export, and does not look at them.
    fixed = [
        f"{path} = {leaf['value']}"
        for path, leaf in case.named_leaves
        if leaf.get("kind") in ("int", "float", "bool", "str")
    ][:MOST_NAMED]
    if fixed:
        values = "this value" if len(fixed) == 1 else "these values"
        sentences.append(f"The package ignores {', '.join(fixed)}: export fixed {values}.")
    if isinstance(case.workload, PackageWorkload):
        sentences.append(
            "A package does not include the program around it (constants that it loads, threads, streams). "
            "If calls fail in a program, diagnose the program."
        )
    return " ".join(sentences)


def health_evidence(case: DiagnosisState) -> list[Evidence]:
    """What speaks for health, run by run."""
    ended = [
        Evidence(
            step=label,
            fact=f"ended well after {run.finished.wall_s:.1f} s with {counted(len(run.outputs), 'output')}",
        )
        for label, run in case.runs.items()
        if run.failure == "none"
    ]
    repeats = {
        "second": "the same call, repeated, returns the same outputs",
        "filled": "the call returns the same outputs when fresh memory is filled with different bytes",
    }
    same = [fact for run, fact in repeats.items() if case.differs_in(run) is False]
    return ended + [Evidence(step="repeat_call", fact=fact) for fact in same]


def compared(case: DiagnosisState) -> bool:
    """Whether the outputs of the call were compared with anything."""
    plain = case.plain_run
    if plain is not None and (plain.last("compared_expected") or plain.as_expected):
        return True
    return case.equals_eager is not None or case.with_eager is not None
