"""When a small reproduction helps: the fault is inside of what the compiler made, or refused to make."""

from __future__ import annotations

from mcp_server.diagnosis.actions.exported_program import exported_path
from mcp_server.diagnosis.call_arguments import Arguments, call_arguments, workload_arguments
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Category, NextStep

OF_GRAPH: frozenset[Category] = frozenset({"compile_failure", "wrong_output", "nan_or_inf"})
OF_LAUNCH: frozenset[Category] = frozenset({"illegal_memory_access", "nan_or_inf"})
# Arguments of a workload that `reduce` takes.
TAKEN = frozenset(
    {"script", "script_args", "exported", "package", "inputs", "extra_imports", "python", "env", "cwd"}
)


def reduction(best: Suspect, case: Case) -> list[NextStep]:
    """The call of `reduce` that cuts this failure down, if there is one."""
    operators = _operators(case) if best.category in OF_GRAPH else {}
    if operators:
        why = "cut the program down to the operators that still fail in this way"
        return [NextStep(why=why, tool="reduce", arguments=operators)]
    launch = _launch(best, case) if best.category in OF_LAUNCH else {}
    if not launch:
        return []
    why = "replay that launch alone, in a script that needs nothing but torch"
    return [NextStep(why=why, tool="reduce", arguments=launch)]


def _operators(case: Case) -> Arguments:
    """The script, or the program that was captured from it, or that was given."""
    assert case.workload is not None
    whole = workload_arguments(case.workload)
    if "package" not in whole and whole.keys() <= TAKEN and (case.capture is None or _compiles(case)):
        return whole
    program, call = exported_path(case), call_arguments(case)
    if program is None or call.keys() - TAKEN:
        return {}
    return {"exported": str(program), **{name: call[name] for name in call if name != "package"}}


def _compiles(case: Case) -> bool:
    """Whether the run compiled a program that was kept: a failed export leaves none."""
    assert case.capture is not None
    return any(compiled.exported is not None for compiled in case.capture.compiles)


def _launch(best: Suspect, case: Case) -> Arguments:
    """The launch that the verdict names, of the captured or given call."""
    numbers = [party.launch_index for party in (best.guilty, best.crashing) if party is not None]
    launch = next((number for number in numbers if number is not None), None)
    call = call_arguments(case)
    if launch is None or not call or call.keys() - TAKEN:
        return {}
    return {"scope": "launch", "launch": launch, **call}
