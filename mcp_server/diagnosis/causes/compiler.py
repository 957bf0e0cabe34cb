"""Faults of the compile: an option that allows different numbers, or a compiler pass.

They are considered only if the inputs fit and generated code is suspect. To test one, the program is compiled
without it; `bisect` does so for passes. Numbers that differ from eager mode only by rounding are
not a fault, whatever a failed check says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_server.diagnosis.components import check_failed, own_code, seen
from mcp_server.diagnosis.interventions.base import (
    Effect,
    Intervention,
    Kind,
    Seen,
    Trial,
    judged_elsewhere,
    trial_in_words,
)
from mcp_server.diagnosis.program_seen import OWN_RUNS
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, FixRun, Verdict
from mcp_server.worker.events import ComparedExpected

if TYPE_CHECKING:  # `bisect` has heavy imports that are rarely needed
    from mcp_server.tools.failing import FailureShown
    from mcp_server.tools.switches import Bisected

COMPILE = "aoti_compile_and_package(...)"


def compiler_suspect(suspects: Sequence[Suspect], case: DiagnosisState) -> Suspect | None:
    """The suspect that a compiler pass may explain: generated code that gives wrong numbers.

    None without a comparison with eager mode, or if something else explains the difference: TF32, chance,
    other weights, inputs that do not fit, the user's own code.
    """
    compared = case.with_eager
    if compared is None or compared.kind != "error" or compared.other_constants:
        return None
    if any(mismatch.severity == "fatal" for mismatch in case.mismatches):
        return None
    first = next((each.launch for each in case.wrong_launches), None)
    launch = next((each for each in case.launches if each.index == first), None)
    if launch is not None and (launch.symbol or launch.kernel) in own_code(case):
        return None
    wrong = [each for each in suspects if each.category == "wrong_output" and each.harmful and not each.weak]
    named = [each for each in wrong if each.guilty.kind in ("kernel", "package") and each.guilty.name]
    return next((each for each in named if each.guilty.kind == "kernel"), named[0] if named else None)


def may_be_decided(suspect: Suspect) -> bool:
    """Whether the suspect is a launch with wrong numbers, which a compiler pass may explain."""
    tried = suspect.intervention
    return suspect.category == "wrong_output" and tried is not None and tried.kind is Kind.KERNEL


def generated_suspect(suspects: Sequence[Suspect], case: DiagnosisState) -> Suspect | None:
    """A suspect that a compiler option may explain: wrong numbers, failed compile or bad access."""
    found = compiler_suspect(suspects, case)
    if found is not None or any(mismatch.severity == "fatal" for mismatch in case.mismatches):
        return found
    own, compiled = own_code(case), case.call is None and case.only_compiled
    for each in suspects:
        guilty = each.guilty
        if compiled:
            of_torch = guilty.kind != "op" or guilty.name.startswith(("aten", "prims"))
            explained = each.category in ("compile_failure", "illegal_memory_access") and of_torch
        else:
            in_kernel = guilty.kind == "kernel" and not each.weak
            explained = each.category == "illegal_memory_access" and in_kernel
        if explained and each.harmful and guilty.name not in own:
            return each
    return None


def detect_decision(case: DiagnosisState) -> Iterator[Suspect]:
    """Yield the suspect that `bisect` examined, with the compiler pass or rounding that explains it."""
    if case.bisected is None:
        return
    suspect, found = case.bisected
    if found.outcome == "rounding":
        yield replace(suspect, summary=f"{suspect.summary} {found.summary}", weak=True, harmful=False)
    if found.outcome != "decision":
        return
    lines = [decision.location for decision in found.decisions if decision.location is not None]
    facts = [seen("bisect", found.summary)]
    for each in found.decisions:
        if each.rewrites or each.change:  # describe what the pass does to the graph in one line
            by = f" by {', '.join(each.rewrites)}" if each.rewrites else ""
            changed = "; ".join(line.strip() for line in each.change[:4])
            fact = f"{each.name} rewrites the graph{by}{f': {changed}' if changed else ''}"
            facts.append(seen("bisect", fact))
    yield replace(
        suspect,
        guilty=suspect.guilty.model_copy(update={"model_locations": lines or suspect.guilty.model_locations}),
        summary=f"{suspect.summary} {found.summary}",
        level=CausalLevel.BUILD,
        evidence=(*suspect.evidence, *facts),
        fix=_fix(found),
        intervention=trial_of(found).intervention,
        observed=True,
    )


def trial_of(found: Bisected) -> Trial:
    """The result of `bisect` as a trial. It does not apply if only a reduced program was cured."""
    names = ", ".join(decision.operator or decision.name for decision in found.decisions)
    kind, workaround = found.decisions[0].kind, found.workaround
    helps = workaround is not None and workaround.whole == "gone"
    trial = compiled_again(
        f"{kind}:{names}",
        f"with a careful value of {names}" if kind == "switch" else f"without the {kind} {names}",
        found.failure,
        Effect.GONE if helps else Effect.NOT_APPLICABLE,
        workaround.code if workaround is not None and helps else "",
    )
    return trial if helps else replace(trial, reason="this was seen only in the reduced program")


def compiled_again(key: str, how: str, failure: FailureShown, effect: Effect, code: str) -> Trial:
    """The trial of a failing program that was compiled again with the one change `how`."""
    failing = Seen("ok", differs=str(failure))
    if failure.kind == "crash":
        failing = Seen("died", signal=failure.signal or "", text=failure.text)
    elif failure.kind == "error":
        failing = Seen("raised", text=failure.text)
    without = Intervention(
        key=f"compiler:{key}",
        kind=Kind.COMPILER,
        what=f"the call compiled {how}",
        before_code=COMPILE if code else "",
        after_code=code,
    )
    return judged_elsewhere(without, effect, failing)


def _fix(found: Bisected) -> Fix:
    """The workaround, and where to report the fault."""
    workaround, report = found.workaround, found.report
    reported = f" and report it to PyTorch ({report.path} has the text)" if report is not None else ""
    if workaround is None or workaround.whole != "gone":
        return Fix(text=f"keep the operators named above out of the model{reported}")
    price = f"; a call then takes {workaround.price:.2g} times as long" if workaround.price else ""
    return Fix(text=f"compile with the workaround{reported}{price}", before=COMPILE, after=workaround.code)


# Rounds intermediate results of bf16 and fp16 as eager does (torch/_inductor/config.py, 2.6 and later).
CASTS = {"emulate_precision_casts": True}
CODE = f"aoti_compile_and_package(..., inductor_configs={CASTS!r})"
KEY = "compiler:precision"
# Categories whose only sign may be a failed check of numbers.
OF_NUMBERS = ("wrong_output", "script_error")


def is_rounding(case: DiagnosisState) -> bool:
    """Whether rounding is the only fault: nothing failed, or only a check of the outputs did.

    If a check failed, rounding must also explain its reference values. Otherwise they do not come from eager
    mode, and may be wrong.
    """
    if case.rounding is None or _far_off(case):
        return False
    failures = {
        label: failure for label in OWN_RUNS if (failure := case.failure_of(label)) not in (None, "none")
    }
    if not failures:
        return not case.failed
    failures.pop("script" if check_failed(case) else "", None)
    return set(failures.values()) <= {"differs"} and bool(case.rounding.reference)


MOST_ROUNDED, MOST_NARROW = 1e-3, 3e-2  # largest error, relative to the largest value: float32, 16 bits
LEAST = 1e-5  # absolute tolerance of torch.testing for float32


def _far_off(case: DiagnosisState) -> bool:
    """Whether the outputs differ from the user's expected ones by too much for a verdict of no fault.

    Where large numbers cancel, even rounding can change a result by as much as its size.
    """
    compared = case.plain_run.last(ComparedExpected) if case.plain_run is not None else None
    if compared is None or not compared.given or case.rounding is None:
        return False
    most = MOST_NARROW if case.rounding.narrow else MOST_ROUNDED
    return any((each.by or 0.0) > max(LEAST, most * (each.reach or 0.0)) for each in compared.outputs)


def without_rounding(found: list[Suspect], case: DiagnosisState) -> list[Suspect]:
    """The suspects without those that rest only on a rounding difference or the text of a check."""
    if not is_rounding(case):
        return found
    return [each for each in found if each.category not in OF_NUMBERS and not each.weak]


def casts_trial(failure: FailureShown, effect: Effect) -> Trial:
    """The trial of the program compiled with intermediate results rounded as in eager mode."""
    how = "with intermediate results rounded as in eager mode"
    return compiled_again("precision", how, failure, effect, CODE if effect is Effect.GONE else "")


def as_rounding(verdict: Verdict, case: DiagnosisState) -> Verdict:
    """Add the rounding errors and the trial of `casts_trial` to a verdict of no fault."""
    assert case.rounding is not None
    error = max((float(each.error or 0.0) for each in case.rounding.outputs), default=0.0)
    eager = max((float(each.eager_error or 0.0) for each in case.rounding.outputs), default=0.0)
    fact = (
        f"the outputs differ from the program computed in float64 by up to {error:.3g}, which rounding "
        f"explains for every element; those of eager mode differ from it by up to {eager:.3g}"
    )
    evidence: list[Evidence] = [seen("interpret", fact)]
    fix = Fix(text=f"allow for rounding in the check: a difference of {error + eager:.3g} is not a fault")
    update: dict[str, object] = {}
    trial = case.trials.get(KEY)
    if trial is not None:
        evidence.append(seen("intervention", trial_in_words(trial)))
    if trial is not None and trial.proves:
        update["confidence"] = "proven"
        update["intervention"] = trial.record()
        action = f"{fix.text}; if you need the rounding of eager mode, compile with this"
        fix = Fix(text=action, before=COMPILE, after=CODE, ran=FixRun(result="the outputs equal eager's"))
    if case.failed:
        update |= {"fix": fix, "next_steps": []}
    summary = (
        f"No fault found: the numbers differ from eager mode only by rounding. {fact[0].upper()}{fact[1:]}."
    )
    return verdict.model_copy(
        update={"summary": summary, "evidence": [*evidence, *verdict.evidence], **update}
    )
