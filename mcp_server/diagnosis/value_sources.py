"""Where a bad value can come from: elements of inputs, and operators of the model."""

from __future__ import annotations

import re

from mcp_server.diagnosis.components import reported
from mcp_server.diagnosis.indices import input_index
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.model import Evidence
from mcp_server.package.assertion import Division, divisions
from mcp_server.package.terms.linear import affine
from mcp_server.worker import events
from mcp_server.worker.protocol import InputSlice

# A logarithm makes minus infinity of a zero; what else makes it alone, fills in a mask.
_LOGARITHM = re.compile(r"\baten\.log(?:2|10|1p|_)?\.")


def first_made(case: DiagnosisState) -> events.NodeNonFinite | None:
    """The first operator to make NaN or plus infinity of finite values, or of a mask's minus infinity.

    A row that is masked as a whole is such a case. If a logarithm made the minus infinity, the logarithm is
    the first. None if an input or a constant had the value already.
    """
    masks: dict[str, events.NodeNonFinite] = {}
    for event in case.eager_events(events.NodeNonFinite):
        if not set(event.bad_inputs) <= masks.keys():
            continue
        if event.masked:
            masks[event.node] = event
            continue
        # The operators that brought the minus infinity from which this one computes.
        names = list(event.bad_inputs)
        for name in names:
            names += [other for other in masks[name].bad_inputs if other not in names]
        roots = [masks[name] for name in names if not masks[name].bad_inputs]
        return next((root for root in roots if _LOGARITHM.search(root.op)), event)
    return None


_BY_ZERO = ("ZeroDivision", "by zero")


def failure(case: DiagnosisState) -> Evidence | None:
    """What shows that a division by zero ended the call: the text of the run, or its signal."""
    plain = case.plain_run
    if plain is not None and plain.finished.signal == "SIGFPE":
        return Evidence(step="run", fact="the process died of SIGFPE: the processor refused a division")
    found = ((source, root) for source, root in case.roots if root.family.id == "kernel_division")
    return next((reported(root, source) for source, root in found), None)


def failed_divisions(case: DiagnosisState) -> tuple[Division, ...]:
    """The divisions of the package, once one failed; those of the line that eager names, if it does."""
    view = case.view
    if view is None or failure(case) is None:
        return ()
    found = divisions(view.tracer)
    event = raised(case)
    lines = {(frame.file, frame.line) for frame in event.stack} if event is not None else set()
    own = [
        division
        for division in found
        if any((at.file, at.line) in lines for at in view.provenance(division.launch).locations)
    ]
    return tuple(own) or found


def raised(case: DiagnosisState) -> events.NodeRaised | None:
    """The operator of the exported program that refuses to divide by zero in eager mode, too."""
    found = case.eager_events(events.NodeRaised)
    return next((each for each in found if any(text in each.text for text in _BY_ZERO)), None)


def divisor_parts(division: Division, case: DiagnosisState) -> list[InputSlice]:
    """The elements of inputs that are divisors as they are."""
    direct = [source for source in division.sources if source.direct and division.plain]
    placed = [(input_index(source, case), affine(source.load.index) or (0, 1)) for source in direct]
    return [InputSlice(index, *place, 0, 0, unlike=0) for index, place in placed if index is not None]
