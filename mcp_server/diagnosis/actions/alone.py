"""The user's program without the hook, which waits for every call and so can hide a race."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcp_server.diagnosis.actions.runs import see
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.limits import limit_of
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.jobs.types import Command
from mcp_server.model import CommandWorkload, ScriptWorkload
from mcp_server.steps.capture import workload_argv
from mcp_server.steps.context import Context
from mcp_server.steps.leases import gpus_of

SHARE = 0.6  # of what the budget leaves


class RunAlone:
    """Run the program again that ended well under the hook, and let inputs go that a stream might read."""

    name = "run_alone"
    seconds = 30.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        seen = case.capture
        return 0.9 if seen is not None and seen.finished.ok and seen.loans else 0.0

    async def act(self, case: Case, context: Context) -> None:
        workload = case.workload
        assert isinstance(workload, ScriptWorkload | CommandWorkload)
        limit = limit_of(case, share=SHARE)
        command = Command(
            argv=workload_argv(context, workload),
            cwd=workload.cwd or Path.cwd(),
            env=workload.env,
            timeout_s=limit.seconds,
            gpus=gpus_of(None),
        )
        finished = await context.run(command, "alone", runs=1)
        limit.check(finished, "the program")
        case.runs["alone"] = see("alone", finished)
