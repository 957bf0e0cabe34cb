"""A failed division of whole numbers: the launches that can have done it, and the elements to look at."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.first_made import told
from mcp_server.diagnosis.index_parts import IndexPart, affine
from mcp_server.model import Evidence
from mcp_server.package.assertion import IndexSource
from mcp_server.package.divisors import Division, divisions
from mcp_server.steps.reports import Event

_SAID = ("ZeroDivision", "by zero")


def failure(case: Case) -> Evidence | None:
    """What shows that a division by zero ended the call: the text of the run, or its signal."""
    plain = case.runs.get("plain")
    if plain is not None and plain.finished.signal == "SIGFPE":
        return Evidence(step="run", fact="the process died of SIGFPE: the processor refused a division")
    for source, facts in case.logs:
        root = facts.root
        if root is not None and root.family.id == "kernel_division":
            return Evidence(step="run", fact=root.text[:300], source=f"{source}:{root.line}")
    return None


def failed_divisions(case: Case) -> tuple[Division, ...]:
    """The divisions of the package, once one failed; those of the line that eager tells, if it does."""
    if case.view is None or failure(case) is None:
        return ()
    found = divisions(case.view.tracer)
    event = raised(case)
    lines = {(frame["file"], frame["line"]) for frame in event["stack"]} if event is not None else set()
    own = [d for d in found if any(line in lines for line in _lines(d, case))]
    return tuple(own) or found


def raised(case: Case) -> Event | None:
    """The operator of the exported program that refuses to divide by zero in eager mode, too."""
    events = told(case, "node_raised")
    return next((event for event in events if any(said in str(event["text"]) for said in _SAID)), None)


def divisor_parts(division: Division, case: Case) -> list[IndexPart]:
    """The elements of inputs that are divisors as they are."""
    direct = [source for source in division.sources if source.direct and division.plain]
    return [part for source in direct if (part := _part(source, case)) is not None]


def _part(source: IndexSource, case: Case) -> IndexPart | None:
    inputs = case.package.inputs if case.package is not None else ()
    index = next((item.index for item in inputs if item.label == source.label), None)
    place = affine(source.load.index) or (0, 1)
    return IndexPart(index, *place, 0, 0, unlike=0) if index is not None else None


def _lines(division: Division, case: Case) -> list[tuple[str, int]]:
    assert case.view is not None
    return [(at.file, at.line) for at in case.view.provenance(division.launch).locations]
