"""What the stacks of threads tell of a call that did not come back, or that died."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.from_log import WORKER
from mcp_server.evidence.facts import ThreadStack
from mcp_server.model import ModelLocation


def operator_inside(stacks: Sequence[ThreadStack], case: Case) -> str:
    """The package's own operator that a thread is inside, told by the name of its function."""
    functions = {
        frame.function.rpartition(".")[2] for stack in stacks for frame in stack.frames if frame.user
    }
    nodes = case.package.proxy_nodes if case.package is not None else ()
    for target in dict.fromkeys(node.target for node in nodes):
        if target.partition("::")[2].partition(".")[0] in functions:
            return target
    return ""


def lines_inside(stacks: Sequence[ThreadStack]) -> list[ModelLocation]:
    """The user's innermost line of each thread: below a call, inside an operator of the user's own."""
    found = {}
    for stack in stacks:
        own = [frame for frame in stack.frames if frame.user and not frame.file.startswith(WORKER)]
        if own:
            place = ModelLocation(file=own[-1].file, line=own[-1].line, code=own[-1].code)
            found[place.file, place.line] = place
    return list(found.values())[:3]
