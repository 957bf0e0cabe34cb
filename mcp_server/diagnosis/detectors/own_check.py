"""A check of the program's own that failed over a call which is right by its exported program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors import from_log
from mcp_server.diagnosis.own_code import users_code
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Evidence, Fix


def detect(case: Case) -> Iterator[Suspect]:
    """What the log says of the program, with what clears AOTInductor of it; nothing while that is open."""
    if not _cleared(case):
        return
    for suspect in from_log.detect(case):
        if suspect.category == "script_error":
            yield _of_program(suspect, case)


def _cleared(case: Case) -> bool:
    """Whether all calls came back, and the last, made again, gives what the exported program gives.

    Not where the program held tensors of that layout, and none that this call gives: another one was checked.
    Nor where both run kernels or operators of the user's, which nothing was held against.
    """
    seen, plain = case.capture, case.runs.get("plain")
    if seen is None or plain is None or not case.own_check or seen.assertions:
        return False
    if users_code(case):
        return False
    came_back = all(call.outcome == "ok" for call in seen.calls)
    looked_at = not plain.held or any(plain.held.values())
    return came_back and plain.failure == "none" and bool(case.equals_eager) and looked_at


def _of_program(told: Suspect, case: Case) -> Suspect:
    """The same, cleared of the other causes that a check may have."""
    return replace(
        told,
        summary=f"{told.summary.rstrip('.')}. The package gives what its exported program gives on the call "
        "before: what the check expects, the data of the call or the model itself is to mend.",
        evidence=(
            *told.evidence,
            Evidence(
                step="interpret", fact="package and exported program agree on the call before the check"
            ),
            *_modules(case),
        ),
        fix=Fix(
            action="look at the data of that call and at what the check expects: compiling is not at fault"
        ),
    )


def _modules(case: Case) -> Iterator[Evidence]:
    """The module that the check sees, where it has the very weights that were compiled."""
    assert case.capture is not None
    known = [compiled.digests for compiled in case.capture.compiles if compiled.digests]
    near = case.capture.ends[-1].modules if case.capture.ends else []
    for module in near[:1]:
        if any(one.items() <= module.digests.items() for one in known):
            fact = f"{module.name} ({module.type}) has the weights that were compiled"
            yield Evidence(step="capture", fact=fact)
