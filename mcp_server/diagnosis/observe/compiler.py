"""Looking for the decision of the compiler behind wrong numbers: the longest observation."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.causes.compiler import compiler_suspect, trial_of
from mcp_server.diagnosis.planner import Observation
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import ExportedWorkload, ScriptWorkload
from mcp_server.tools.context import Context

SHARE = 0.7  # of what the budget leaves; the workaround on the whole program comes after it
# Ten public reports took 100 to 580 s (benchmarks/compiler_faults.json). A default budget leaves less: then
# the verdict gives `bisect` as the next step.


class BisectCompiler(Observation):
    """Reduce the program and switch decisions of the compiler off until it gives eager's numbers."""

    name = "bisect"
    seconds = 300.0
    alone = True
    extra = True

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        possible = isinstance(case.workload, ScriptWorkload | ExportedWorkload)
        return 0.5 if possible and compiler_suspect(open_suspects, case) is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        from mcp_server.tools.bisect import bisect  # brings what few need

        suspect, workload = compiler_suspect(case.suspects, case), case.workload
        assert suspect is not None and isinstance(workload, ScriptWorkload | ExportedWorkload)
        found = await bisect(context, workload, budget_s=SHARE * case.seconds_left, seen=case.capture)
        case.bisected = suspect, found
        case.notes += found.notes
        case.artifacts += [*found.reproduction, *([found.report] if found.report is not None else [])]
        if found.outcome == "decision":
            trial = trial_of(found)
            case.trials[trial.intervention.key] = trial
