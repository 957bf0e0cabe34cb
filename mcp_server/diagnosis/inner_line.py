"""The line in a helper of the model behind the recorded line that calls it, where the source leaves one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.division import failure
from mcp_server.diagnosis.first_made import first_made, told
from mcp_server.model import Category, Evidence, ModelLocation, Party
from mcp_server.package.called import lines_doing
from mcp_server.package.provenance import Frame
from mcp_server.package.relevance import DIVIDES, INDEXES, UNBOUNDED
from mcp_server.steps.reports import Event

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
MOST = 3  # lines of a kernel that detectors always tell in full


def deepened(party: Party, category: Category, case: Case) -> tuple[Party, list[Evidence]]:
    """The party with the line before the others that one of them calls, and what that rests on.

    A program that we ran has told all lines (worker/capture_lines.py).
    """
    kind = _kind(party, category, case)
    ran = case.capture is not None and bool(case.capture.compiles)
    line = _only(_recorded(party, case), kind, case) if kind is not None and not ran else None
    if line is None or line in party.model_locations:
        return party, []
    lines = [line, *party.model_locations]
    return party.model_copy(update={"model_locations": lines}), [_inferred(line)]


def _kind(party: Party, category: Category, case: Case) -> Kind | None:
    """What was done; None for a kernel that computed what another one indexes with."""
    if failure(case) is not None:
        return DIVISIONS
    made = party.kind == "kernel" and category == "index_out_of_bounds"
    return KINDS.get(category) if not made else None


def _recorded(party: Party, case: Case) -> list[ModelLocation]:
    """The lines that can call it: that of the operator which eager names, else those of the whole kernel."""
    return party.model_locations[:1] if _named(case) is not None else party.model_locations


def _only(recorded: list[ModelLocation], kind: Kind, case: Case) -> ModelLocation | None:
    """The one line of all that are called that can do it."""
    if len(recorded) > MOST:
        return None  # there may be more that are not shown
    found: list[ModelLocation] = []
    for at in recorded:
        lines = lines_doing(at, _operator(case, kind[0]))
        if lines is None or any(kind[1].search(code) for code in _in_library(at, case)):
            return None
        found += [line for line in lines if line not in found]
    return found[0] if len(found) == 1 else None


def _named(case: Case) -> Event | None:
    """What the operator that raises, or makes the bad value, is in eager mode."""
    return next(iter(told(case, "node_raised")), None) or first_made(case)


def _operator(case: Case, kind: re.Pattern[str]) -> re.Pattern[str]:
    """The very operator, where eager names one of that kind; else the kind."""
    event = _named(case)
    name = str(event["op"]).removeprefix("aten.").partition(".")[0] if event is not None else ""
    return re.compile(rf"{re.escape(name)}\w*") if name and kind.fullmatch(name) else kind


def _inferred(line: ModelLocation) -> Evidence:
    fact = (
        f"inferred from the source: of all that the recorded lines call, only {line.file}:{line.line} can do "
        "it; export records the lines of forward alone"
    )
    shown = shlex.join(["sed", "-n", f"{line.line}p", line.file])
    return Evidence(step="read_source", fact=fact, source=f"{line.file}:{line.line}", command=shown)


def _in_library(at: ModelLocation, case: Case) -> Iterator[str]:
    """What modules of libraries do that are called below that line: the operator may be theirs."""
    for stack in _stacks(case):
        own = [frame for frame in stack if not frame.library]
        if own and (own[-1].file, own[-1].line) == (at.file, at.line) and stack[-1].library:
            yield stack[-1].code


def _stacks(case: Case) -> Iterator[tuple[Frame, ...]]:
    for launch in case.view.wrapper.launches if case.view is not None else ():
        assert case.view is not None
        yield from case.view.provenance(launch).stacks
