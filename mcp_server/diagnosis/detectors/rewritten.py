"""An input that another thread wrote while the package read it."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.sharing import written_inputs
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.evidence.captured import CapturedCall
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Hypothesis]:
    """One hypothesis for the first such call of a program that failed."""
    calls = case.capture.calls if case.capture is not None else []
    own = written_inputs(case)
    for call in calls:
        changed = [place for place in call.rewritten if place not in own]
        if changed and case.failed:
            yield _hypothesis(call, changed[0], case)
            return


def _hypothesis(call: CapturedCall, place: int, case: Case) -> Hypothesis:
    inputs = case.package.inputs if case.package is not None else ()
    label = inputs[place].path or inputs[place].name if place < len(inputs) else f"input {place}"
    return Hypothesis(
        category="concurrency",
        guilty=Party(kind="input", name=label, input_index=place, model_locations=call.stack[:2]),
        summary=f"Input {place} ({label}) was written while the call that reads it ran, and not by the "
        "package: another thread changes the tensor.",
        depth=Depth.STATE,
        sources=frozenset({"capture"}),
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
