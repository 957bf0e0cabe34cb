"""A program that its time limit ended within one call of a package: the time that is left is for where."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.stacks import operator_inside


def hung_inside(case: Case) -> bool:
    """Whether the program did not end for one call, of one thread, that can be made again with probes.

    Not where several threads wait, the call is in an operator in Python, its load was made before a fork, or
    its constants were updated, which a traced call does without.
    """
    run, seen = case.runs.get("script"), case.capture
    if run is None or seen is None or run.failure != "timeout" or case.view is None:
        return False
    open_calls = [call for call in seen.calls if call.outcome == "unfinished"]
    request = case.call.request if case.call is not None and case.call.operation != "compile" else None
    if request is None or len(open_calls) != 1 or any(s["do"] != "call" for s in request.get("steps", ())):
        return False
    return seen.load_of(open_calls[0]) is not None and not operator_inside(run.log.threads, case)


def to_be_traced(case: Case) -> bool:
    """Whether the launches of such a call are to be looked at before anything else is tried with it."""
    return hung_inside(case) and "trace_launches" not in case.done


def shown_by_trace(case: Case) -> bool:
    """Whether the traced call did not end either: then it is known to hang by itself."""
    failure = case.trace.failure if case.trace is not None else None
    return hung_inside(case) and failure is not None and failure.ending == "timeout"


def call_hangs(case: Case) -> bool:
    """Whether the call, made again as it was or with probes, did not come back."""
    plain = case.runs.get("plain")
    return plain.failure == "timeout" if plain is not None else shown_by_trace(case)
