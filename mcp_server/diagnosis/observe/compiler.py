"""Compiling the program in another way: with options changed, or with decisions switched off in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mcp_server.diagnosis.causes.compiler import (
    CASTS,
    KEY,
    casts_trial,
    compiled_again,
    generated_suspect,
    is_rounding,
    options_key,
    relaxed_options,
    trial_of,
)
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe import Observation
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import ExportedWorkload, ScriptWorkload
from mcp_server.runtime.context import Context

if TYPE_CHECKING:
    from mcp_server.tools.switches import Bisected

SHARE = 0.7  # of what the budget leaves; the workaround on the whole program comes after it
# Public reports took 100 to 580 s (benchmarks/compiler_faults.json). A default budget leaves less: then
# the verdict gives `bisect` as the next step.


async def compiled_with(
    case: DiagnosisState, context: Context, options: Mapping[str, object] | None = None
) -> Bisected:
    """The program as it is, and compiled with options: by default with all careful ones.

    Those take the compiles of a search, so that a failure which is not the compiler's is refused first.
    """
    # Both bring what few need.
    from mcp_server.tools.bisect import refuse_others_faults
    from mcp_server.tools.reduce.reduce import failing_program
    from mcp_server.tools.switches import TIMED, switches_of, try_options

    assert isinstance(case.workload, ScriptWorkload | ExportedWorkload)
    failing = await failing_program(context, case.workload, TIMED, case.capture)
    if options is None:
        await refuse_others_faults(context, failing)
        options = await switches_of(failing)
    return await try_options(context, failing, options)


def effect_of(found: Bisected) -> Effect:
    """What became of the failure with the options; nothing that came and went by itself says anything."""
    if found.workaround is not None:
        return Effect.GONE
    stayed = all(each.result == "same" for each in found.experiments)
    return Effect.SAME if stayed else Effect.NOT_APPLICABLE


class CompileCarefully(Observation):
    """Compile the captured program as it is, and without the options that allow other numbers."""

    name = "compile_carefully"
    seconds = 30.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        differs = case.failed and case.equals_eager is False
        return 0.9 if differs and isinstance(case.workload, ScriptWorkload) and relaxed_options(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        options = relaxed_options(case)
        found = await compiled_with(case, context, options)
        code = found.workaround.code if found.workaround is not None else ""
        how = f"without {', '.join(options)}"
        trial = compiled_again(options_key(options), how, found.failure, effect_of(found), code)
        case.trials[trial.intervention.key] = trial


class EmulateCasts(Observation):
    """Compile the program with intermediate results rounded as in eager mode, and once more as it is."""

    name = "emulate_precision_casts"
    seconds = 40.0
    alone = True
    extra = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        possible = isinstance(case.workload, ScriptWorkload | ExportedWorkload) and case.failed
        narrow = case.rounding is not None and case.rounding.narrow
        return 0.9 if possible and narrow and is_rounding(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        found = await compiled_with(case, context, CASTS)
        case.trials[KEY] = casts_trial(found.failure, effect_of(found))


class TrySwitches(Observation):
    """Compile the program with careful options of the compiler until it does not fail, and again without."""

    name = "try_switches"
    seconds = 90.0
    alone = True
    extra = True

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        possible = isinstance(case.workload, ScriptWorkload | ExportedWorkload)
        return 0.9 if possible and generated_suspect(open_suspects, case) is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        suspect = generated_suspect(case.suspects, case)
        assert suspect is not None
        keep(case, suspect, await compiled_with(case, context))


def keep(case: DiagnosisState, suspect: Suspect, found: Bisected) -> None:
    """What a search among the compiler's decisions found, with the trial of the workaround."""
    case.bisected = suspect, found
    case.notes += found.notes if found.decisions else [*found.notes, found.summary]
    case.artifacts += [*found.reproduction, *([found.report] if found.report is not None else [])]
    if found.outcome == "decision":
        trial = trial_of(found)
        case.trials[trial.intervention.key] = trial


class BisectCompiler(Observation):
    """Reduce the program and switch decisions of the compiler off until it gives eager's numbers."""

    name = "bisect"
    seconds = 300.0
    alone = True
    extra = True

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        possible = isinstance(case.workload, ScriptWorkload | ExportedWorkload)
        known = case.bisected is not None and bool(case.bisected[1].decisions)
        return 0.5 if possible and not known and generated_suspect(open_suspects, case) is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        from mcp_server.tools.bisect import bisect  # brings what few need

        suspect, workload = generated_suspect(case.suspects, case), case.workload
        assert suspect is not None and isinstance(workload, ScriptWorkload | ExportedWorkload)
        tried = case.bisected[1] if case.bisected is not None else None
        budget_s = SHARE * case.seconds_left
        found = await bisect(context, workload, budget_s=budget_s, seen=case.capture, tried=tried)
        keep(case, suspect, found)
