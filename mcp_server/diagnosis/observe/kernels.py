"""What the code of kernels shows: the line that an error names, and defects for the sizes of the call."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from mcp_server.diagnosis.causes.illegal_memory_access import DEFECT_FIXES, explains
from mcp_server.diagnosis.interventions.kernel import REPAIRS, repair_kernel
from mcp_server.diagnosis.interventions.run import try_intervention
from mcp_server.diagnosis.observe import COMPARES, EXPLAINS, NEEDED, Observation
from mcp_server.diagnosis.observe.intervene import tried_call
from mcp_server.diagnosis.state import DiagnosisState, UsersKernel
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.model import ModelLocation, ScriptWorkload
from mcp_server.package.exported import node_lines
from mcp_server.package.problems import PackageError
from mcp_server.package.prover import Finding, find_kernel_defects, narrow_arithmetic
from mcp_server.runtime.context import Context

LARGEST = 4 << 20  # size of a file that is searched


class ReadUsersKernel(Observation):
    """Find the user's Triton kernel that failed to compile, in the files with lines of the program."""

    name = "read_users_kernel"
    seconds = 0.1
    best = NEEDED

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if case.package is None and case.runs and _refused(case) is not None else 0.0

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        refused = _refused(case)
        case.users_kernel = _of_user(*refused, case) if refused is not None else None


def _refused(case: DiagnosisState) -> tuple[str, int] | None:
    """Return the user's Triton kernel that could not be compiled, and its failing line from its `def`."""
    for _, root in case.own_roots:
        if root.family.id == "triton_compile" and "function" in root.fields:
            line = root.fields.get("kernel_line", "")
            return (root.fields["function"], int(line)) if line.isdigit() else None
    return None


def _of_user(function: str, line: int, case: DiagnosisState) -> UsersKernel | None:
    """Return where the program defines that kernel. None if no file of the program does, or several do.

    These files are the script, and the files with lines of its model.
    """
    pattern = re.compile(rf"^def\s+{re.escape(function)}\s*\(", re.MULTILINE)
    script = [case.workload.script] if isinstance(case.workload, ScriptWorkload) else []
    stacks = [Path(at.file) for compiled in case.captured.compiles for at in compiled.stack]
    nodes = [Path(at.file) for at in _lines_of_program(case)]
    found = []
    for path in dict.fromkeys([*script, *stacks, *nodes]):
        if path.is_file() and path.stat().st_size <= LARGEST:
            found += [(path, at) for at in pattern.finditer(path.read_text(errors="replace"))]
    if len(found) != 1:
        return None
    path, at = found[0]
    number = at.string.count("\n", 0, at.start()) + line
    lines = at.string.splitlines()
    code = lines[number - 1].strip()[:300] if number <= len(lines) else ""
    return UsersKernel(function, path, number, code)


def _lines_of_program(case: DiagnosisState) -> list[ModelLocation]:
    """Return lines of the program whose compile failed. Empty if the program was not kept."""
    for compiled in reversed(case.captured.compiles):
        if compiled.exported is not None and compiled.exported.is_file():
            with contextlib.suppress(PackageError):
                return [at for _, at in node_lines(compiled.exported)]
            return []
    return []


MOST_MENDED = 3


class ReadKernels(Observation):
    """Determine from the code and the sizes of the call what the kernels do wrong."""

    name = "read_kernels"
    seconds = 1.0
    best = COMPARES

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        sized = case.given is not None or not case.compiled_inputs
        if case.view is None or not sized or not case.launches:
            return 0.0
        return self.best if any(explains(kind, case) for kind in DEFECT_FIXES) else 0.0

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        assert case.view is not None
        found = await anyio.to_thread.run_sync(find_kernel_defects, case.view, case.sizes)
        if explains("narrow", case):
            found += await anyio.to_thread.run_sync(narrow_arithmetic, case.view)
        case.kernel_defects = dict.fromkeys(found)


class MendKernels(Observation):
    """Compile the kernels without the defects found in their code.

    If only the exported program shows that the call is wrong, the call is made with the repaired kernels at
    once, and compared with eager mode's outputs.
    """

    name = "mend_kernels"
    seconds = 4.0
    best = EXPLAINS
    extra = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.call.request.get("library") or not _to_mend(case):
            return 0.0
        return self.best if not _only_by_eager(case) or "compare_with_eager" in case.done else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.kernel_defects is not None
        for found in _to_mend(case):
            call = tried_call(case)
            try:
                change = case.kernel_defects[found] = await repair_kernel(context, call, found)
            except ProblemError as problem:
                case.notes.append(f"{found.sentence} It was not repaired: {problem}")
                continue
            right = case.with_eager.every_launch.eager_outputs if case.with_eager is not None else None
            if right is not None and _only_by_eager(case):
                call = replace(call, symptom=replace(call.symptom, expect=right.path))
                case.trials[change.key] = await try_intervention(context, call, change)


def _to_mend(case: DiagnosisState) -> list[Finding]:
    """Return the defects that explain the failure and can be removed by changing their kernel."""
    defects = case.kernel_defects or {}
    return [each for each in defects if each.kind in REPAIRS and explains(each.kind, case)][:MOST_MENDED]


def _only_by_eager(case: DiagnosisState) -> bool:
    """Whether only the exported program shows that the call is wrong."""
    return case.equals_eager is False and not case.call_fails and not case.symptom.judges
