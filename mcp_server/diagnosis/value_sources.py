"""Where a bad value can come from: elements of inputs, operators of the model, and their source lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from mcp_server.diagnosis.components import reported
from mcp_server.diagnosis.indices import input_index
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.model import Category, Component, Evidence, ModelLocation
from mcp_server.package.assertion import Division, divisions
from mcp_server.package.provenance import DIVIDES, INDEXES, UNBOUNDED, lines_doing
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


# Operators that can have done it, as names in source, and as text of a line.
Kind = tuple[re.Pattern[str], re.Pattern[str]]
DIVISIONS: Kind = (re.compile(r"div\w*|floor_divide|remainder|fmod"), DIVIDES)
KINDS: dict[Category, Kind] = {
    "index_out_of_bounds": (
        re.compile(r"index|embedding\w*|gather|scatter\w*|index_\w+|take\w*|put\w*"),
        INDEXES,
    ),
    "nan_or_inf": (
        re.compile(
            r"div\w*|true_divide|pow|float_power|exp\w*|log\w*|r?sqrt|reciprocal|a?tanh?|acosh?|asin|sinh|cosh"
            r"|soft\w+|normalize|\w*norm|mean|std\w*|var\w*|lgamma|digamma|erfinv|xlogy|cross_entropy|inv\w*"
            r"|to|type\w*|half|bfloat16|float16"
        ),
        UNBOUNDED,
    ),
}
MOST = 3  # lines of a kernel, all of which detectors always show


def deepened(party: Component, category: Category, case: DiagnosisState) -> tuple[Component, list[Evidence]]:
    """The party with the line of a called function before its own lines, and the evidence for that.

    Not needed for a program that we ran, whose lines were all recorded (worker/capture/compiles.py), nor for
    a kernel that only computed an index for another one.
    """
    made_index = party.kind == "kernel" and category == "index_out_of_bounds"
    kind = KINDS.get(category) if not made_index else None
    kind = DIVISIONS if failure(case) is not None else kind
    ran = bool(case.captured.compiles)
    line = _only_line(party, kind, case) if kind is not None and not ran else None
    if line is None or line in party.model_locations:
        return party, []
    place = f"{line.file}:{line.line}"
    inferred = Evidence(
        step="read_source",
        fact=f"inferred from the source: of all that the recorded lines call, only {place} can do it; export "
        "records the lines of forward alone",
        source=place,
        command=shlex.join(["sed", "-n", f"{line.line}p", line.file]),
    )
    return party.model_copy(update={"model_locations": [line, *party.model_locations]}), [inferred]


def _only_line(party: Component, kind: Kind, case: DiagnosisState) -> ModelLocation | None:
    """The one line, of all that the recorded lines call, that can be at fault; None if there are several.

    Recorded is the line of the operator that raises or makes the bad value in eager mode. If eager mode names
    none, all lines of the kernel are.
    """
    operator, text = kind
    event = next(iter(case.eager_events(events.NodeRaised)), None) or first_made(case)
    recorded = party.model_locations[:1] if event is not None else party.model_locations
    if len(recorded) > MOST:
        return None  # there may be more that are not shown
    name = event.op.removeprefix("aten.").partition(".")[0] if event is not None else ""
    if name and operator.fullmatch(name):
        operator = re.compile(rf"{re.escape(name)}\w*")
    found: list[ModelLocation] = []
    for at in recorded:
        lines = lines_doing(at, operator)
        if lines is None or any(text.search(code) for code in _in_library(at, case)):
            return None
        found += [line for line in lines if line not in found]
    return found[0] if len(found) == 1 else None


def _in_library(at: ModelLocation, case: DiagnosisState) -> Iterator[str]:
    """What modules of libraries do that are called below that line: the operator may be theirs."""
    provenance = [case.view.provenance(launch) for launch in case.launches] if case.view is not None else []
    for stack in (stack for each in provenance for stack in each.stacks):
        own = [frame for frame in stack if frame.user]
        if own and (own[-1].file, own[-1].line) == (at.file, at.line) and not stack[-1].user:
            yield stack[-1].code
