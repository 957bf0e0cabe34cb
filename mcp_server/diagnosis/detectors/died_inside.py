"""A call that died of a signal inside an operator of the user's own, as the last stack tells."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.stacks import lines_inside, operator_inside
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.facts import ThreadStack
from mcp_server.model import Category, Evidence, Fix, Party

# What these signals say of the code that they end; any other one is the operator's own affair.
_OF_MEMORY = frozenset({"SIGSEGV", "SIGBUS"})


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where the thread that died was inside an operator that the package calls."""
    stacks = died(case)
    op = operator_inside(stacks, case)
    if not op:
        return
    signal = case.runs["plain"].finished.signal or "a signal"
    category: Category = "illegal_memory_access" if signal in _OF_MEMORY else "custom_op"
    lines = lines_inside(stacks)
    at = f", at {lines[0].file}:{lines[0].line}" if lines else ""
    yield Suspect(
        category=category,
        guilty=Party(kind="op", name=op, model_locations=lines),
        summary=f"The process died of {signal} inside operator {op}{at}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(Evidence(step="run", fact=f"the thread that died of {signal} was inside {op}{at}"),),
        fix=Fix(action=f"check what {op} reads and writes against the sizes and strides that it is given"),
    )


def died(case: Case) -> list[ThreadStack]:
    """The stack of the thread that the signal of the plain run ended.

    An error of a CUDA kernel ends the process at whatever call comes next: where that is says nothing.
    """
    plain = case.runs.get("plain")
    late = plain is not None and plain.root is not None and plain.root.family.late
    if plain is None or plain.failure != "signal" or late:
        return []
    return [thread for thread in plain.log.threads if thread.current]
