"""Watching launches: their values, journal and bad accesses."""

from collections.abc import Sequence

from mcp_server.diagnosis.causes.hang import operator_inside, to_be_traced
from mcp_server.diagnosis.causes.illegal_memory_access import died
from mcp_server.diagnosis.causes.value_constraints import failed_divisions
from mcp_server.diagnosis.components import drawing_launches, own_code
from mcp_server.diagnosis.indices import candidates, index_error, indexing_launches
from mcp_server.diagnosis.observe import COMPARES, DECIDES, GUESSES, LOCATES, NEEDED, SEARCHES, Observation
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.kernels import indexes_unchecked
from mcp_server.runtime.context import Context
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.locate_fault import in_graph, locate_fault, run_under_checker
from mcp_server.tools.trace_launches import trace_launches

MOST_LAUNCHES = 10_000  # enough for all launches of a call, which detectors look at


class WatchLaunches(Observation, seconds=12, best=NEEDED, alone=True):
    """Rebuild the package with launch probes, and look at the values that every launch reads and writes."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.package is None or "plain" not in case.runs:
            return 0.0
        if case.outputs_nonfinite or any("nan" in error.family.tags for _, error in case.errors):
            return self.best
        possible = candidates(case)
        if any(source.producers for candidate in possible for source in candidate.sources):
            return LOCATES
        # Watch launches that ignore a bad index, or that check it outside the generated kernels.
        launches = indexing_launches(case)
        asserted = index_error(case) is not None and not possible
        dropped = any(not launch.checked for launch in launches)
        return SEARCHES if dropped or (asserted and launches) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        case.kernel_io = await dump_kernel_io(
            context, case.package_call, stop_at_first_bad=True, shown=MOST_LAUNCHES
        )


HANG_LIMIT_S = 40.0
SHORTEST_S = 15.0  # time to import, load the package and reach the launch
REBUILD_S = 25.0  # seconds of the remaining budget for the rebuild before the call
# The call's share of the rest. A rebuild takes longer on a busy machine, and the results must be read.
SHARE = 0.6
JOURNAL_BYTES = 4 << 20  # an endless loop fills any file; only its last passes count


class TraceLaunches(Observation, seconds=14, best=NEEDED, alone=True):
    """Run the instrumented package, waiting for each launch, and see which launch does not return."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if to_be_traced(case):
            return self.best
        failure = case.failure_of("plain")
        if case.call is None or case.package is None:
            return 0.0
        nothing_located = case.located is not None and case.located.fault is None
        hangs_or_dies = failure == "timeout" or (nothing_located and failure in ("signal", "exception"))
        return LOCATES if hangs_or_dies else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        workload = case.package_call
        if case.failure_of("plain") in (None, "timeout"):
            env = {**workload.env, "AOTI_DEBUG_JOURNAL_LIMIT": str(JOURNAL_BYTES)}
            # A trace of a call that hangs would be lost if the budget cut it short.
            limit_s = max(SHORTEST_S, min(HANG_LIMIT_S, (case.seconds_left - REBUILD_S) * SHARE))
            workload = workload.model_copy(update={"timeout_s": limit_s, "env": env})
        case.trace = await trace_launches(context, workload)


class LocateFault(Observation, seconds=20, best=NEEDED, alone=True):
    """Name the launch, argument and line of a bad access, including a silent one."""

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if _program_only(case):
            return DECIDES
        if case.call is None or case.package is None or case.plain_run is None:
            return 0.0
        if _loud_suspicion(case.plain_run, case):
            return self.best
        if silent_suspicion(case):
            return COMPARES
        # On a GPU, or with unchecked indices, check a call without suspicion: a small overrun may cause no
        # fault and no NaN, and a package alone has no reference for its numbers.
        by_package = isinstance(case.workload, PackageWorkload)
        if case.device != "cuda":
            return GUESSES if by_package and indexes_unchecked(case.package.kernel_text) else 0.0
        if by_package:
            return 0.0 if any(each.harmful and not each.weak for each in open_suspects) else GUESSES
        # The user's own kernel may be the reason for the wrong numbers.
        return GUESSES if case.plain_diverges and own_code(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        if not _program_only(case):
            case.located = await locate_fault(context, case.package_call)
        elif case.capture is not None and isinstance(case.workload, ScriptWorkload | CommandWorkload):
            case.located = await run_under_checker(
                context, case.workload, case.capture, package=case.host_package
            )


def _program_only(case: DiagnosisState) -> bool:
    """Whether a program died of a bad access or signal, and kept no call to repeat."""
    script, seen = case.script_run, case.capture
    if script is None or seen is None or not (seen.loads or case.host_package):
        return False
    replayable = case.call is not None and not (in_graph(seen) and seen.failing is None)
    return not replayable and (_admits(script) or (script.failure == "signal" and script.root is None))


def _admits(run: RunSeen) -> bool:
    return run.root is not None and "illegal_memory_access" in run.root.candidates[:2]


def _loud_suspicion(plain: RunSeen, case: DiagnosisState) -> bool:
    """Whether the end of the call suggests a bad access, by its text, its signal, or a lost assertion.

    False inside operators in Python, where no checker can look. The text of a device assertion is lost if the
    process ends before the output of the device is read; under memcheck it is read after each kernel.
    """
    root, inside = plain.root, operator_inside(died(case), case)
    if _admits(plain) and not inside:
        return True
    if root is not None and root.family.id == "cuda_assert_status" and index_error(case) is None:
        return True
    if plain.failure != "signal" or inside or failed_divisions(case):
        return False
    return root is None or "illegal_memory_access" in root.candidates


def silent_suspicion(case: DiagnosisState) -> bool:
    """Whether memory may be read wrongly without an error.

    Signs are outputs that vary or differ from the exported program's, and sizes that may not fit.
    """
    sized = [m for m in case.mismatches if m.aspect in ("range", "relation")]
    unsure = any(m.severity != "fatal" or case.ended_well for m in sized)
    unsteady = case.reads_unset or (bool(case.differs_in("second")) and not drawing_launches(case))
    return case.equals_eager is False or unsteady or (unsure and case.runs["plain"].failure == "none")
