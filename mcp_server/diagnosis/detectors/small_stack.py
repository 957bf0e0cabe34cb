"""A call that needs more stack than its thread has: it dies of a signal, as of a bad pointer."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, Party

LARGE = 1 << 30  # bytes; memory is taken only as far as the stack grows
SIGNALS = frozenset({"SIGSEGV", "SIGBUS"})
KEY = "large-stack"


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for a call that dies again on a stack smaller than usual, to be tried with a large one.

    Not on a usual one: a large one may let a bad pointer pass by chance, and nothing else speaks for it.
    """
    plain, call = case.runs.get("plain"), case.call
    if plain is None or plain.finished.signal not in SIGNALS or call is None or call.operation != "replay":
        return
    size = next((step["stack"] for step in call.request.get("steps", ())[-1:] if "stack" in step), None)
    if size is not None:
        yield _suspect(plain.finished.signal or "", size, case)


def _suspect(signal: str, size: int, case: Case) -> Suspect:
    died = case.capture.failing if case.capture is not None else None
    trial = case.trials.get(KEY)
    passed = trial is not None and trial.proves
    fact = f"the thread of the call had a stack of {size} bytes"
    return Suspect(
        category="environment",
        guilty=Party(
            kind="environment",
            name="stack of the calling thread",
            value=f"{size} bytes",
            model_locations=died.stack[:2] if died is not None else [],
        ),
        summary=f"The call died of {signal} because it needs more stack than its thread has, "
        f"{size} bytes: no pointer is bad.",
        level=CausalLevel.CALL if passed else CausalLevel.SYMPTOM,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(
            action="give the thread more stack (threading.stack_size, ulimit -s), or make what recurses "
            "there, or keeps large arrays, use less"
        ),
        intervention=Intervention(
            KEY, Kind.CALL, f"the call on a stack of {LARGE} bytes", options=Options(stack_bytes=LARGE)
        ),
        observed=False,
    )
