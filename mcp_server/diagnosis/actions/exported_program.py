"""The exported program behind the package, where a capture kept it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import ExportedWorkload
from mcp_server.package.exported import read_exported
from mcp_server.steps.context import Context


class ReadExported:
    """Read the program's parameters, fixed arguments and ranges; nothing is loaded."""

    name = "read_exported"
    seconds = 0.1
    alone = False

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        return 1.0 if exported_path(case) is not None else 0.0

    async def act(self, case: Case, _context: Context) -> None:
        path = exported_path(case)
        assert path is not None
        case.exported = read_exported(path)


def exported_path(case: Case) -> Path | None:
    """The saved program of the compile that wrote the package of the suspect call."""
    if isinstance(case.workload, ExportedWorkload):
        return case.workload.exported
    if case.capture is None or not case.capture.loads:
        return None
    call = case.capture.suspect
    load = case.capture.load_of(call) if call is not None else case.capture.loads[-1]
    compiled = case.capture.compile_of(load) if load is not None else None
    path = compiled.exported if compiled is not None else None
    return path if path is not None and path.exists() else None
