"""Which imports a diagnosis begins before it needs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.diagnose import EXPORTED, import_ahead
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.jobs.types import Command
from mcp_server.model import PackageWorkload, ScriptWorkload, Workload
from mcp_server.tools.context import WORKER_MAIN, Context
from mcp_server.tools.fault_methods import ONE_THREAD
from mcp_server.tools.shared_import import surroundings
from mcp_server.tools.step_cache import StepCache

SCRIPT = ScriptWorkload(script=Path("a.py"), cwd=Path("/tmp"), env={"TORCHINDUCTOR_CACHE_DIR": "/tmp/c"})
PACKAGE = PackageWorkload(package=Path("a.pt2"))


class Expected:
    """Notes what is expected, and imports nothing."""

    def __init__(self) -> None:
        self.commands: list[tuple[Command, tuple[str, ...]]] = []

    def expect(self, command: Command, modules: tuple[str, ...] = ()) -> None:
        self.commands.append((command, modules))


def expected(workload: Workload | None, **fields: Any) -> list[tuple[Command, tuple[str, ...]]]:
    context, imports = Context(Path("job"), Path(sys.executable), **fields), Expected()
    context.imports = imports  # type: ignore[assignment]
    import_ahead(DiagnosisState(workload), context)
    return imports.commands


def test_the_requests_of_a_diagnosis_find_their_import(tmp_path: Path) -> None:
    """A plain request and one with a single thread have the surroundings that were expected for them."""
    plain, single = expected(SCRIPT)
    env = {**SCRIPT.env, "TORCHINDUCTOR_VEC_ISA_OK": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    common = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    argv = (sys.executable, "-u", str(WORKER_MAIN), "request.json")
    for (command, _), more in ((plain, {"AOTI_RUNTIME_CHECK_INPUTS": "1"}), (single, ONE_THREAD)):
        asked = Command(argv, tmp_path, {**env, **common, **more})
        assert surroundings(command) == surroundings(asked)


def test_only_a_workload_with_an_exported_program_pays_for_reading_one() -> None:
    """The modules come with the first import of a script, and with none of a package."""
    assert [modules for _, modules in expected(SCRIPT)] == [EXPORTED, ()]
    assert [modules for _, modules in expected(PACKAGE)] == [(), ()]


@pytest.mark.parametrize(
    ("workload", "fields"),
    [(None, {}), (SCRIPT, {"launcher": ("srun",)}), (SCRIPT, {"kept": StepCache(last=4)})],
    ids=["log", "launcher", "kept"],
)
def test_nothing_is_imported_where_no_request_may_come(
    workload: Workload | None, fields: dict[str, Any]
) -> None:
    """A log alone runs nothing, a launcher starts each process itself, a job taken up again may be done."""
    assert expected(workload, **fields) == []
