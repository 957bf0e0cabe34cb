"""An input that another thread wrote: while the package read it, or before the call that it was for."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.sharing import written_inputs
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedCall
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for the first such call of a program that failed."""
    calls = case.capture.calls if case.capture is not None else []
    own = written_inputs(case)
    for call in calls:
        changed = [place for place in call.rewritten if place not in own]
        if changed and case.failed:
            yield _suspect(call, changed[0], case)
            return
    yield from _overtaken(calls, case)


def _overtaken(calls: list[CapturedCall], case: Case) -> Iterator[Suspect]:
    """Calls that a worker thread made with one and the same content, in a program that minds its results."""
    again = [call for call in calls if call.again and call.thread_name != "MainThread"]
    minds = case.failed and not case.ended_well and all(call.outcome == "ok" for call in calls)
    if again and minds and _right_by_itself(case):
        yield _same_content(again, case)


def _right_by_itself(case: Case) -> bool:
    """Whether the call, made again, is right for the content that it was given, as far as is known."""
    plain = case.runs.get("plain")
    return case.equals_eager is not False and (plain is None or plain.failure in ("none", "differs"))


def _same_content(again: list[CapturedCall], case: Case) -> Suspect:
    call, place = again[-1], again[-1].again[0]
    fact = (
        f"{len(again)} calls in thread {call.thread_name} were given the very tensor of the call before, "
        "with nothing written to it in between"
    )
    return Suspect(
        category="concurrency",
        guilty=Party(
            kind="input", name=_label(place, case), input_index=place, model_locations=call.stack[:2]
        ),
        summary=f"Input {place} ({_label(place, case)}): {fact}. What was put there for each may have been "
        "written over before the first one ran.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(
            action="hand each call a tensor of its own, or wait for a call before its input is written anew"
        ),
        observed=False,
    )


def _label(place: int, case: Case) -> str:
    inputs = case.package.inputs if case.package is not None else ()
    return inputs[place].path or inputs[place].name if place < len(inputs) else f"input {place}"


def _suspect(call: CapturedCall, place: int, case: Case) -> Suspect:
    label = _label(place, case)
    return Suspect(
        category="concurrency",
        guilty=Party(kind="input", name=label, input_index=place, model_locations=call.stack[:2]),
        summary=f"Input {place} ({label}) was written while the call that reads it ran, and not by the "
        "package: another thread changes the tensor.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(
                step="capture",
                fact=f"in-place operations on input {place} between the begin and the end of a call in "
                f"thread {call.thread_name}",
            ),
        ),
        fix=Fix(
            action="give the call a tensor that nobody else writes",
            before=call.stack[0].code if call.stack else None,
            after="pass tensor.clone(), or hold a lock around the call and the writes",
        ),
    )
