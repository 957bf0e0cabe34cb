"""Compiling the program in another way: without a risky option, or with decisions switched off in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    from mcp_server.tools.bisect import Bisected
    from mcp_server.tools.reduce.failing import FailureShown

SHARE = 0.7  # of what the budget leaves; the workaround on the whole program comes after it
# Public reports took 100 to 580 s (benchmarks/compiler_faults.json). A default budget leaves less: then
# the verdict gives `bisect` as the next step.


EFFECTS = {"gone": Effect.GONE, "same": Effect.SAME, "other": Effect.CHANGED}


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
        code = f"aoti_compile_and_package(..., inductor_configs={options!r})"
        failure, effect = await compiled_with(case, context, options)
        trial = compiled_again(options_key(options), f"without {', '.join(options)}", failure, effect, code)
        case.trials[trial.intervention.key] = trial


async def compiled_with(
    case: DiagnosisState, context: Context, options: Mapping[str, object]
) -> tuple[FailureShown, Effect]:
    """Compile and call the program as it is, and with options: its failure, and what became of that."""
    # Both bring what few need.
    from mcp_server.tools.bisect import result_of
    from mcp_server.tools.reduce.reduce import failing_program, run_worker

    assert isinstance(case.workload, ScriptWorkload | ExportedWorkload)
    failing = await failing_program(context, case.workload, seen=case.capture)
    changed = replace(failing.target, configs={**failing.target.configs, **options})
    result = result_of(await run_worker(context, "attempt", changed), failing)
    return failing.failure, EFFECTS[result]


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
        trial = await compiled_with(case, context, CASTS)
        case.trials[KEY] = casts_trial(*trial)


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
        # All bring what few need.
        from mcp_server.tools.bisect import TIMED
        from mcp_server.tools.reduce.reduce import failing_program
        from mcp_server.tools.switches import try_switches

        suspect, workload = generated_suspect(case.suspects, case), case.workload
        assert suspect is not None and isinstance(workload, ScriptWorkload | ExportedWorkload)
        found = await try_switches(context, await failing_program(context, workload, TIMED, case.capture))
        keep(case, suspect, found)


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
        found = await bisect(context, workload, budget_s=SHARE * case.seconds_left, seen=case.capture)
        keep(case, suspect, found)
