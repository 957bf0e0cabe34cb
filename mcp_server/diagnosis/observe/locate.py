"""The call under a memory checker."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.causes.hang import operator_inside
from mcp_server.diagnosis.causes.illegal_memory_access import died
from mcp_server.diagnosis.causes.wrong_output import drawing_launches, own_code
from mcp_server.diagnosis.observe.launches import as_package
from mcp_server.diagnosis.state import DiagnosisState, RunSeen
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.value_sources import failed_divisions, index_error
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.kernel_code import indexes_unchecked
from mcp_server.tools.context import Context
from mcp_server.tools.locate_fault import in_graph, locate_fault, run_under_checker


class LocateFault:
    """Name the launch, the argument and the line of a bad access, also of one that is silent."""

    name = "locate_fault"
    seconds = 20.0
    alone = True

    def gain(self, case: DiagnosisState, open_ones: Sequence[Suspect]) -> float:
        plain = case.runs.get("plain")
        if _program_only(case):
            return 0.9
        if case.call is None or case.package is None or plain is None or case.call.operation == "compile":
            return 0.0
        if _says_memory(case) or _lost_assertion(case) or _died(case):
            return 1.0
        if silent_suspicion(case):
            return 0.6
        return 0.3 if _unwatched(case, open_ones) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        if not _program_only(case):
            case.located = await locate_fault(context, as_package(case), plain_runs=0)
        elif case.capture is not None and isinstance(case.workload, ScriptWorkload | CommandWorkload):
            case.located = await run_under_checker(context, case.workload, case.capture)


def _program_only(case: DiagnosisState) -> bool:
    """Whether a program died of a bad access, or of a signal, and left no call that could show it again."""
    script, seen = case.runs.get("script"), case.capture
    if script is None or seen is None or not seen.loads:
        return False
    replayable = case.call is not None and not (in_graph(seen) and seen.failing is None)
    return not replayable and (_admits(script) or (script.failure == "signal" and script.root is None))


def _says_memory(case: DiagnosisState) -> bool:
    """Whether the failing call's error admits a bad access, and names no index assertion."""
    return _admits(case.runs["plain"]) and not operator_inside(died(case), case)


def _died(case: DiagnosisState) -> bool:
    """A signal that a bad access may have raised, outside of Python operators, which no checker sees."""
    plain = case.runs["plain"]
    if plain.failure != "signal" or operator_inside(died(case), case) or failed_divisions(case):
        return False
    return plain.root is None or "illegal_memory_access" in plain.root.candidates


def _lost_assertion(case: DiagnosisState) -> bool:
    """A device assertion whose text was never printed: the process ended before the device's output was read.

    Under memcheck the device is read after each kernel.
    """
    root = case.runs["plain"].root
    return root is not None and root.family.id == "cuda_assert_status" and index_error(case) is None


def _admits(run: RunSeen) -> bool:
    return run.root is not None and "illegal_memory_access" in run.root.candidates[:2]


def silent_suspicion(case: DiagnosisState) -> bool:
    """Numbers that the exported program does not give, or that change with what new memory holds: without an
    error, memory may be read wrongly.
    """
    compared = case.interpreted.last("compared") if case.interpreted is not None else None
    departs = compared is not None and not compared["equal"]
    unsure = any(m.aspect in ("range", "relation") and m.severity != "fatal" for m in case.mismatches)
    unsteady = case.reads_unset or (bool(case.differs_in("second")) and not drawing_launches(case))
    return departs or unsteady or (unsure and case.runs["plain"].failure == "none")


def _unwatched(case: DiagnosisState, open_ones: Sequence[Suspect]) -> bool:
    """A call that nothing is known against, on a GPU or with indices that nobody checks.

    A small overrun shows neither as a fault nor as NaN. A package alone has no reference that numbers could
    be held against. Wrong numbers may be due to a kernel of the user's own, which no compiler checks.
    """
    if case.device != "cuda":
        return isinstance(case.workload, PackageWorkload) and _unchecked(case)
    if isinstance(case.workload, PackageWorkload):
        return not any(h.harmful and not h.weak for h in open_ones)
    return case.plain_diverges and bool(own_code(case))


def _unchecked(case: DiagnosisState) -> bool:
    """Whether the kernels of a CPU package index with what they compute, without a check."""
    return case.package is not None and indexes_unchecked(case.package.kernel_text)
