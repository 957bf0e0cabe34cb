"""Inputs that the package updates in place, and that may be given where it would update a copy."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.sharing import written_inputs
from mcp_server.package.alignment import copied_when_misaligned


def updated_in_a_copy(case: Case) -> dict[int, int]:
    """By position, the bytes by which an address has to be divisible for the update to reach the caller.

    Of a captured call only the inputs that were given elsewhere; where the call is made from a file, its
    addresses show when it is made.
    """
    if case.view is None:
        return {}
    bytes_of = copied_when_misaligned(case.view.wrapper.text)
    written = written_inputs(case) if bytes_of else ()
    inputs = case.view.wrapper.inputs().items()
    found = {place: bytes_of[b.name] for place, b in inputs if b.name in bytes_of and place in written}
    call = case.capture.suspect if case.capture is not None else None
    if call is None:
        return found
    leaves = dict(enumerate(call.leaves))
    return {n: size for n, size in found.items() if n in leaves and 0 < leaves[n].alignment < size}
