"""Numbers that differ from eager mode by rounding alone: no fault, whatever the check that failed says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_server.diagnosis.causes.compiler import COMPILE, compiled_again
from mcp_server.diagnosis.components import check_failed, seen
from mcp_server.diagnosis.interventions.base import Effect, Trial, trial_in_words
from mcp_server.diagnosis.state import OWN_RUNS, DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Evidence, Fix, FixRun, Verdict

if TYPE_CHECKING:  # brings what few need
    from mcp_server.tools.reduce.failing import FailureShown

# Rounds intermediate results of bf16 and fp16 as eager does (torch/_inductor/config.py, 2.6 and later).
CASTS = {"emulate_precision_casts": True}
CODE = f"aoti_compile_and_package(..., inductor_configs={CASTS!r})"
KEY = "compiler:precision"
# What only says that outputs are not as expected.
OF_NUMBERS = ("wrong_output", "script_error")


def is_rounding(case: DiagnosisState) -> bool:
    """Whether rounding explains all that is wrong: nothing, or a check of the outputs that failed.

    What the check compared them with must be explained by rounding as well: else it is something other than
    eager's outputs, and may be what is wrong.
    """
    if case.rounding is None:
        return False
    failures = {
        label: failure for label in OWN_RUNS if (failure := case.failure_of(label)) not in (None, "none")
    }
    if not failures:
        return not case.failed
    failures.pop("script" if check_failed(case) else "", None)
    return set(failures.values()) <= {"differs"} and bool(case.rounding.reference)


def without_rounding(found: list[Suspect], case: DiagnosisState) -> list[Suspect]:
    """The suspects but for those that a difference of rounding alone, or the text of the check, calls up."""
    if not is_rounding(case):
        return found
    return [each for each in found if each.category not in OF_NUMBERS and not each.weak]


def casts_trial(failure: FailureShown, effect: Effect) -> Trial:
    """The trial of the program compiled with intermediate results rounded as in eager mode."""
    how = "with intermediate results rounded as in eager mode"
    return compiled_again("precision", how, failure, effect, CODE if effect is Effect.GONE else "")


def as_rounding(verdict: Verdict, case: DiagnosisState) -> Verdict:
    """A verdict of no fault, with how near package and eager are, and the compile that showed it."""
    assert case.rounding is not None
    error = max((float(each.error) for each in case.rounding.outputs), default=0.0)
    eager = max((float(each.eager_error) for each in case.rounding.outputs), default=0.0)
    fact = (
        f"the outputs are up to {error:.3g} from the program computed in float64, and those of eager mode up "
        f"to {eager:.3g}; no element is further from it than rounding moves it"
    )
    evidence: list[Evidence] = [seen("interpret", fact)]
    fix = Fix(action=f"allow for rounding in the check: a difference of {error + eager:.3g} is no fault")
    update: dict[str, object] = {}
    trial = case.trials.get(KEY)
    if trial is not None:
        evidence.append(seen("intervention", trial_in_words(trial)))
    if trial is not None and trial.proves:
        update["confidence"] = "proven"
        update["intervention"] = trial.record()
        action = f"{fix.action}; where eager's own rounding is needed, compile with this"
        fix = Fix(action=action, before=COMPILE, after=CODE, ran=FixRun(result="the outputs equal eager's"))
    if case.failed:
        update |= {"fix": fix, "next_steps": []}
    summary = (
        f"No fault found: the numbers differ from eager mode by rounding alone. {fact[0].upper()}{fact[1:]}."
    )
    return verdict.model_copy(
        update={"summary": summary, "evidence": [*evidence, *verdict.evidence], **update}
    )
