"""An index that is NaN made an integer: the operator that makes the NaN is to blame, not the index."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.eager import guard_fix, lines_of, making
from mcp_server.diagnosis.detectors.index import crashing
from mcp_server.diagnosis.first_made import first_made, told
from mcp_server.diagnosis.index_parts import candidates
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Party
from mcp_server.package.assertion import Candidate
from mcp_server.steps.reports import Event

# What the conversion of NaN or of an infinity gives on the processors that torch's wheels are for.
NOT_A_NUMBER = frozenset({-(2**63), 2**63 - 1, -(2**31), 2**31 - 1})


def detect(case: Case) -> Iterator[Suspect]:
    """The maker of the NaN, where eager mode refuses an index that is computed from it."""
    made = first_made(case)
    for refused in told(case, "node_raised")[:1]:
        text = str(refused["text"]).splitlines()[0][:300]
        computed = made is not None and made["node"] in refused.get("behind", ())
        if made is not None and computed and _converted(refused, text):
            yield _suspect(made, refused, text, case)


def _converted(refused: Event, text: str) -> bool:
    """Whether such a number is in the text, or among the integers that the operator was given."""
    given = {end for ends in refused.get("integers", ()) for end in ends}
    return bool(NOT_A_NUMBER & given) or any(f" {number} " in f" {text} " for number in NOT_A_NUMBER)


def _suspect(made: Event, refused: Event, text: str, case: Case) -> Suspect:
    check = _check(refused, case)
    return Suspect(
        category="nan_or_inf",
        guilty=Party(kind="op", name=str(made["op"]), model_locations=lines_of(made)),
        summary=f"{made['op']} makes the first value that is not finite, in eager mode too; made an integer, "
        f"it is the index that {refused['op']} refuses: {text}.",
        level=CausalLevel.STATE,
        evidence=(
            making(made),
            Evidence(step="interpret", fact=f"{refused['node']}, which computes from it, raised: {text}"),
            *(
                (
                    Evidence(
                        step="inspect_package", fact=f"the check of that index failed at {check.location}"
                    ),
                )
                if check is not None
                else ()
            ),
        ),
        crashing=crashing(check)
        if check is not None
        else Party(kind="op", name=str(refused["op"]), model_locations=lines_of(refused)),
        fix=guard_fix(made),
        harmful=case.failed,
        observed=check is not None,
    )


def _check(refused: Event, case: Case) -> Candidate | None:
    """The only check of the package that can have failed, if its kernel is of the line that eager refuses."""
    found = candidates(case)
    lines = {(at.file, at.line) for at in lines_of(refused)[:1]}
    places = {(c.launch.index, c.check.line) for c in found}
    own = {(at.file, at.line) for c in found for at in c.provenance.locations}
    return found[0] if len(places) == 1 and lines & own else None
