"""Constants that the package shares with the program, and that the program wrote after it gave them.

With `user_managed=True` the package reads the program's own memory (torch 2.8-2.15); a call that is made
again gets the values as they were given, so that it shows what it would have been without the writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.evidence.captured import CapturedCall, CapturedUpdate
from mcp_server.model import Evidence, Fix, Party

MOST_NAMED = 4


def detect(case: Case) -> Iterator[Hypothesis]:
    """One hypothesis, where the call with the values as given is what the program expected, or held."""
    call = case.capture.suspect if case.capture is not None else None
    update = _given(call, case) if call is not None and call.altered else None
    again = _as_given(case)
    if call is not None and update is not None and again:
        yield _hypothesis(call, update, again, case)


def _given(call: CapturedCall, case: Case) -> CapturedUpdate | None:
    """The last update before the call that gave the first of these constants."""
    updates = case.capture.updates if case.capture is not None else []
    same = [u for u in updates if (u.pid, u.load) == (call.pid, call.load) and u.n < call.n]
    return next((u for u in reversed(same) if call.altered[0] in u.constants), None)


def _as_given(case: Case) -> str:
    """What the call made again shows, in words; empty where it shows nothing of the writes."""
    plain = case.runs.get("plain")
    told = plain.worker.last("compared_expected") if plain is not None and plain.worker else None
    if plain is None or plain.failure != "none":
        return ""
    if told is not None and told["equal"]:
        return "with the values as they were given, the call gives what the program expected"
    if plain.held and not all(plain.held.values()):
        return "with the values as they were given, the call gives other outputs than it gave"
    return ""


def _hypothesis(call: CapturedCall, update: CapturedUpdate, again: str, case: Case) -> Hypothesis:
    shown = ", ".join(call.altered[:MOST_NAMED])
    fact = f"{len(call.altered)} constants were written in place between {update.how} and the call: {shown}"
    return Hypothesis(
        category="constants",
        guilty=Party(
            kind="constant",
            name=call.altered[0],
            value="written by the program after the update",
            model_locations=[*update.stack[:1], *call.stack[:1]],
        ),
        summary="The program changed constants that it shares with the package (user_managed=True), so that "
        f"the call computes with other values: {shown}.",
        depth=Depth.STATE,
        sources=frozenset({"capture", *({"replay"} if "expected" in again else ())}),
        evidence=(Evidence(step="capture", fact=fact), Evidence(step="run", fact=again)),
        fix=Fix(
            action="give the package copies: load_constants without user_managed, or clones that stay alive",
            before="user_managed=True",
            after="user_managed=False",
        ),
        harmful=case.failed,
        exact="expected" in again,
    )
