"""Wrong numbers: compares each launch with its reference, then compiles the program in other ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from mcp_server.diagnosis.causes.compiler import (
    CASTS,
    KEY,
    casts_trial,
    generated_suspect,
    is_rounding,
    trial_of,
)
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.interventions.kernel import MOST_TRIED, compile_anew, try_in_eager
from mcp_server.diagnosis.interventions.run import try_intervention
from mcp_server.diagnosis.interventions.source import as_usual
from mcp_server.diagnosis.observe import COMPARES, DECIDES, SEARCHES, Observation
from mcp_server.diagnosis.observe.intervene import tried_call
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.pytorch.text import read_constants
from mcp_server.runtime.context import Context
from mcp_server.tools.compare_with_eager import Pair, compare_pair, updates_of
from mcp_server.tools.decompile import compare, judge_captures, write

if TYPE_CHECKING:
    from mcp_server.tools.switches import Bisected


class CompareLaunches(Observation, name="compare_with_eager", seconds=20, best=COMPARES, alone=True):
    """Find the launches that diverge, and distinguish errors from rounding, TF32, chance and unset memory.

    Each launch that is wrong on correct inputs then runs in eager mode, to see if the outputs become right.
    """

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.call.request.get("library") or "plain" not in case.runs:
            return 0.0
        if case.undefined is not None:
            return 0.0  # neither side is wrong
        # Differences that fail no check are not investigated.
        differs = case.plain_diverges
        if case.equals_eager is not None:
            minded = case.failed or case.judged_by_program
            differs = minded and not case.equals_eager
        return self.best if differs and case.program_path is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        program = case.program_path
        assert program is not None and case.call is not None
        pair = Pair(case.package_call, program, updates_of(case.call.request))
        case.with_eager = await compare_pair(context, pair)
        every = case.with_eager.every_launch
        if every.wrong and case.with_eager.kind is not None:
            call = tried_call(case)
            if not call.symptom.judges and every.eager_outputs is not None:
                call = replace(call, symptom=replace(call.symptom, expect=every.eager_outputs.path))
            case.trials |= await try_in_eager(context, call, every, program)


MOST_BYTES = 8 << 20  # size of a constant that is read
MOST_IN_ALL = 64 << 20


class ReadConstants(Observation, seconds=1, best=SEARCHES):
    """Look for weights of the package that are not finite, all zero, or far larger than the others."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.package is None or case.call is None or case.call.updated or case.plain_run is None:
            return 0.0
        if sum(each.bytes for each in case.package.constants) > MOST_IN_ALL:
            return 0.0
        return self.best if case.plain_diverges or case.outputs_nonfinite else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        package, folder = case.package, context.fresh("constants")
        assert package is not None
        case.constants_read = await anyio.to_thread.run_sync(
            lambda: tuple(read_constants(package, folder, MOST_BYTES))
        )


class JudgeBySource(Observation, name="decompile", seconds=15, best=SEARCHES, alone=True):
    """Compare each launch with its own source, read as PyTorch: the only reference for a package alone.

    Kernels of launches that differ are compiled again from their source, to see if the call then gives the
    program's outputs. If none differs, a launch that is unlike the others of its kind is made to compute like
    them.
    """

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        call = case.call
        if call is None or case.inputs is None or call.updated or call.request.get("library"):
            return 0.0
        plain, minded = case.plain_run, case.symptom.seen == "wrong-output" or case.plain_diverges
        came_back = plain is not None and plain.failure in ("none", "nonfinite", "differs")
        return self.best if minded and came_back and case.program_path is None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        if case.captures and isinstance(case.workload, PackageWorkload):
            case.by_source = await judge_captures(context, case.workload, case.captures)
            case.parsed = case.by_source.view
            return
        written = await write(context, case.package_call, context.directory / "as-pytorch")
        right = written.path.with_name("outputs.pt")
        case.by_source = found = await compare(context, case.package_call, written, right)
        call = tried_call(case)
        if not call.symptom.judges and right.exists():
            call = replace(call, symptom=replace(call.symptom, expect=right))
        kernels = dict.fromkeys(each.kernel for each in found.different)
        for name in list(kernels)[:MOST_TRIED]:
            try:
                made = await compile_anew(context, call, name)
            except ProblemError:  # an operator, or a kernel that does not compile here
                continue
            case.trials[made.key] = await try_intervention(context, call, made)
        for odd in found.odd[:MOST_TRIED] if case.symptom.judges and not found.different else ():
            try:
                usual, made = await as_usual(context, call, case.package_call, written, odd)
            except ProblemError:  # the package takes no probes, or the program passes
                continue
            case.trials[made.key] = await try_intervention(context, usual, made)


SHARE = 0.7  # of the remaining budget; trying the workaround on the whole program follows
# `bisect` took 100 to 580 s on public reports (benchmarks/results.json). A default budget leaves less: then
# the verdict gives `bisect` as the next step.


async def compiled_with(
    case: DiagnosisState, context: Context, options: Mapping[str, object] | None = None
) -> Bisected:
    """Compile the program unchanged, and with options.

    The default is to first reject failures that are not the compiler's, then use all careful options.
    """
    # Heavy imports that are rarely needed.
    from mcp_server.tools.bisect import refuse_others_faults
    from mcp_server.tools.failing import failing_program
    from mcp_server.tools.switches import TIMED, switches_of, try_options

    assert isinstance(case.workload, ScriptWorkload | ExportedWorkload)
    failing = await failing_program(context, case.workload, TIMED, case.capture)
    if options is None:
        await refuse_others_faults(context, failing)
        options = switches_of(failing)
    return await try_options(context, failing, options)


def effect_of(found: Bisected) -> Effect:
    """What the options did to the failure. An intermittent failure says nothing."""
    if found.workaround is not None:
        return Effect.GONE
    stayed = all(each.result == "same" for each in found.experiments)
    return Effect.SAME if stayed else Effect.NOT_APPLICABLE


class EmulateCasts(
    Observation, name="emulate_precision_casts", seconds=40, best=DECIDES, alone=True, extra=True
):
    """Compile the program with intermediate results rounded as in eager mode, and once more unchanged."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        possible = isinstance(case.workload, ScriptWorkload | ExportedWorkload) and case.failed
        narrow = case.rounding is not None and case.rounding.narrow
        return self.best if possible and narrow and is_rounding(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        found = await compiled_with(case, context, CASTS)
        case.trials[KEY] = casts_trial(found.failure, effect_of(found))


class TrySwitches(Observation, seconds=90, best=DECIDES, alone=True, extra=True):
    """Compile the program with careful compiler options until it does not fail, and again without them."""

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        possible = isinstance(case.workload, ScriptWorkload | ExportedWorkload)
        return self.best if possible and generated_suspect(open_suspects, case) is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        suspect = generated_suspect(case.suspects, case)
        assert suspect is not None
        keep(case, suspect, await compiled_with(case, context))


def keep(case: DiagnosisState, suspect: Suspect, found: Bisected) -> None:
    """Keep the result of a search for a compiler pass, and the trial of its workaround."""
    case.bisected = suspect, found
    case.notes += found.notes if found.decisions else [*found.notes, found.summary]
    case.artifacts += [*found.reproduction, *([found.report] if found.report is not None else [])]
    if found.outcome == "decision":
        trial = trial_of(found)
        case.trials[trial.intervention.key] = trial


class BisectCompiler(Observation, name="bisect", seconds=300, best=SEARCHES, alone=True, extra=True):
    """Reduce the program and switch compiler passes off until it gives eager mode's numbers."""

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        possible = isinstance(case.workload, ScriptWorkload | ExportedWorkload)
        known = case.bisected is not None and bool(case.bisected[1].decisions)
        suspected = generated_suspect(open_suspects, case) is not None
        return self.best if possible and suspected and not known else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        from mcp_server.tools.bisect import bisect  # heavy imports that are rarely needed

        suspect, workload = generated_suspect(case.suspects, case), case.workload
        assert suspect is not None and isinstance(workload, ScriptWorkload | ExportedWorkload)
        tried = case.bisected[1] if case.bisected is not None else None
        budget_s = SHARE * case.seconds_left
        found = await bisect(context, workload, budget_s=budget_s, seen=case.capture, tried=tried)
        keep(case, suspect, found)
