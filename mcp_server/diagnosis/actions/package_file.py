"""Reading the package: no process, no load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import PackageWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.problems import PackageError
from mcp_server.steps.context import Context


class OpenPackage:
    """Open the package file: its device, inputs, constants, launches and defects."""

    name = "open_package"
    seconds = 0.2
    alone = False

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        return 1.0 if package_path(case) is not None else 0.0

    async def act(self, case: Case, _context: Context) -> None:
        path, model = package_path(case) or (Path(), None)
        gone = _gone(path, case)
        if gone:
            case.call = None
            case.notes.append(gone)
            return
        try:
            case.package = open_package(path, model)
        except PackageError as error:
            case.package_error = error


def package_path(case: Case) -> tuple[Path, str | None] | None:
    """The package of the failing call, and the model in it."""
    if case.call is not None and case.call.package is not None:
        return case.call.package, case.call.request.get("model_name")
    if isinstance(case.workload, PackageWorkload):
        return case.workload.package, case.workload.model_name
    return None


def _gone(path: Path, case: Case) -> str:
    """Why this file is not the package that the program loaded, where that is so: nothing is known of that.

    A program may delete what it packaged, or write the file anew.
    """
    loads = case.capture.loads if case.capture is not None else []
    then = next((load for load in reversed(loads) if path in (load.copy_path, load.package)), None)
    if then is None or not then.bytes:
        return ""
    now = path.stat().st_size if path.exists() else None
    if now == then.bytes:
        return ""
    state = "is gone" if now is None else f"has {now} bytes"
    why = f": {then.notice}" if then.notice else ""
    was = f"{then.package} had {then.bytes} bytes when the program loaded it"
    return f"{was}, and {state} now; no copy was kept{why}"
