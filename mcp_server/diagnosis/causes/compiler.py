"""The compiler itself: a failure that goes away when one of its decisions is switched off.

Only what the compiler generated can be suspected, with inputs that fit. Which decision it is comes from
`bisect`, which has already made the counter-test: without the decision the program works, with it again it
fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_server.diagnosis.causes.common import seen
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, SideEffects, Trial
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Fix
from mcp_server.worker.protocol import CallFacts

if TYPE_CHECKING:  # `bisect` brings what few need
    from mcp_server.tools.bisect import Bisected, Decision

_COMPILE = "aoti_compile_and_package(...)"


def compiler_suspect(suspects: Sequence[Suspect], case: DiagnosisState) -> Suspect | None:
    """The suspect that a decision of the compiler may explain: wrong numbers of code that it generated.

    None where the program is not known, or the difference has another explanation (TF32, chance, memory that
    nothing wrote, other weights).
    """
    first = case.with_eager.first if case.with_eager is not None else None
    if first is None or first.kind != "error" or case.with_eager is None or case.with_eager.other_constants:
        return None
    if any(mismatch.severity == "fatal" for mismatch in case.mismatches):
        return None
    launches = case.view.wrapper.launches if case.view is not None else ()
    launch = next((each for each in launches if each.index == first.launch), None)
    if launch is not None and launch.kind in ("user_triton", "proxy_executor"):
        return None
    wrong = [each for each in suspects if each.category == "wrong_output" and each.harmful and not each.weak]
    return next((each for each in wrong if each.guilty.kind in ("kernel", "package")), None)


def detect_decision(case: DiagnosisState) -> Iterator[Suspect]:
    """The suspect with the compiler's decision as its cause."""
    if case.bisected is None:
        return
    suspect, found = case.bisected
    if found.outcome == "rounding":
        yield replace(suspect, summary=f"{suspect.summary} {found.summary}", weak=True, harmful=False)
    if found.outcome != "decision":
        return
    lines = [decision.location for decision in found.decisions if decision.location is not None]
    facts = [seen("bisect", found.summary)]
    facts += [seen("bisect", _changes(each)) for each in found.decisions if each.rewrites or each.change]
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
    """What `bisect` did with the whole program, as the trial of one intervention.

    It was compiled as it is, with the workaround, and before that in a smaller form with the decision off and
    on again. A workaround that only helps the smaller form says nothing about the whole.
    """
    names = ", ".join(decision.operator or decision.name for decision in found.decisions)
    kind = found.decisions[0].kind
    workaround = found.workaround
    helps = workaround is not None and workaround.whole == "gone"
    if found.failure.kind == "crash":
        failing = Seen("died", signal=found.failure.signal or "", text=found.failure.text)
    elif found.failure.kind == "error":
        failing = Seen("raised", text=found.failure.text)
    else:
        failing = Seen("ok", differs=str(found.failure))
    return Trial(
        Intervention(
            key=f"compiler:{kind}:{names}",
            kind=Kind.COMPILER,
            what=f"the call compiled without the {kind} {names}",
            before_code=_COMPILE if helps else "",
            after_code=workaround.code if workaround is not None and helps else "",
        ),
        Effect.GONE if helps else Effect.NOT_APPLICABLE,
        failing,
        Seen("ok", facts=CallFacts("without", "", "ok")),
        failing,
        side_effects=SideEffects(known=False),
        reason="" if helps else "this was seen on the reduced program only",
    )


def _changes(decision: Decision) -> str:
    """What the decision does to the graph, in one line."""
    by = f" by {', '.join(decision.rewrites)}" if decision.rewrites else ""
    changed = "; ".join(line.strip() for line in decision.change[:4])
    return f"{decision.name} rewrites the graph{by}{f': {changed}' if changed else ''}"


def _fix(found: Bisected) -> Fix:
    """The workaround, and where to report the fault."""
    workaround, report = found.workaround, found.report
    reported = f" and report it to PyTorch ({report.path} has the text)" if report is not None else ""
    if workaround is None or workaround.whole != "gone":
        return Fix(action=f"keep the operators that are named out of the model{reported}")
    price = f"; a call then takes {workaround.price:.2g} times as long" if workaround.price else ""
    return Fix(action=f"compile with the workaround{reported}{price}", before=_COMPILE, after=workaround.code)
