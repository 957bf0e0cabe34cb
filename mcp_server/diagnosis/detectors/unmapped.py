"""A call that died of an input whose memory was gone: unmapped, or behind the end of a file that was cut."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedCall
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, for the call that did not come back."""
    call = case.capture.failing if case.capture is not None else None
    if call is not None and call.unmapped and call.outcome == "unfinished":
        yield _suspect(call, call.unmapped[0], case)


def _suspect(call: CapturedCall, place: int, case: Case) -> Suspect:
    name = f"input {place}"
    signal = case.runs["script"].finished.signal if "script" in case.runs else None
    fact = f"when the call began, the memory of {name}{_layout(call, place)} was not mapped"
    return Suspect(
        category="illegal_memory_access",
        guilty=Party(
            kind="input", name=name, input_index=place, value="not mapped", model_locations=call.stack
        ),
        summary=f"The memory behind {name} was given back to the system before the call, which died of it"
        f"{f' with {signal}' if signal else ''}.",
        level=CausalLevel.CALL,
        only_in_program=True,
        evidence=(
            Evidence(step="capture", fact=fact),
            *((Evidence(step="run", fact=f"the program died of {signal} in that call"),) if signal else ()),
        ),
        fix=Fix(
            action="keep what owns the memory (a mapping, shared memory, a file, an array) open and whole "
            "until the call has come back, or give the call a copy",
            after="x.clone()",
        ),
    )


def _layout(call: CapturedCall, place: int) -> str:
    leaf = call.leaves[place] if place < len(call.leaves) else None
    return f" ({leaf.dtype} {leaf.shape})" if leaf is not None else ""
