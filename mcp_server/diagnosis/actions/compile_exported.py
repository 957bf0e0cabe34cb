"""Compiling an exported program that was given instead of a package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcp_server.diagnosis.case import CallSpec, Case
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import ExportedWorkload
from mcp_server.steps.compile_with_flags import compile_with_flags
from mcp_server.steps.context import Context
from mcp_server.steps.logs import read_output

PROVENANCE = {"INDUCTOR_PROVENANCE": "1"}


class CompileExported:
    """Compile once, with provenance, so that the call can be made."""

    name = "compile"
    seconds = 30.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        return 1.0 if isinstance(case.workload, ExportedWorkload) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        workload = case.workload
        assert isinstance(workload, ExportedWorkload)
        made = await compile_with_flags(context, workload, PROVENANCE)
        if made.package is None:
            case.log, case.log_source = read_output(made.log.path), "compile"
            return
        inputs = workload.inputs
        request = {
            "package": made.package.path,
            "inputs": inputs,
            "extra_imports": workload.extra_imports,
        }
        file = inputs if isinstance(inputs, Path) else None
        case.call = CallSpec("run", request, made.package.path, file) if inputs is not None else None
