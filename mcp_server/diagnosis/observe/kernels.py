"""Finds and repairs defects in the code of kernels."""

from collections.abc import Sequence
from dataclasses import replace
from textwrap import dedent

import anyio.to_thread

from mcp_server.diagnosis.causes.illegal_memory_access import DEFECT_FIXES, explains
from mcp_server.diagnosis.interventions.kernel import REPAIRS, repair_kernel, with_text
from mcp_server.diagnosis.interventions.run import try_intervention
from mcp_server.diagnosis.observe import COMPARES, DECIDES, EXPLAINS, Observation
from mcp_server.diagnosis.observe.intervene import tried_call
from mcp_server.diagnosis.observe.rerun import change_of, corrections_of, users_kernels
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.package.prover import Finding, find_kernel_defects, narrow_arithmetic
from mcp_server.runtime.context import Context

MOST_MENDED = 3


class ReadKernels(Observation, seconds=1, best=COMPARES):
    """Determine from the code and the sizes of the call what the kernels do wrong."""

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


class MendKernels(Observation, seconds=4, best=EXPLAINS, extra=True):
    """Compile the kernels without the defects found in their code.

    If only the exported program shows that the call is wrong, the call is made with the repaired kernels at
    once, and compared with eager mode's outputs.
    """

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
    """The defects that explain the failure and can be removed by changing their kernel."""
    defects = case.kernel_defects or {}
    return [each for each in defects if each.kind in REPAIRS and explains(each.kind, case)][:MOST_MENDED]


def _only_by_eager(case: DiagnosisState) -> bool:
    """Whether the call returns, and only the comparison with eager mode shows that its numbers are wrong."""
    return case.equals_eager is False and not case.call_fails and not case.symptom.judges


class MendUsersKernels(Observation, seconds=8, best=DECIDES, extra=True):
    """Make a call whose numbers are wrong with a user's kernel corrected, where its text shows a mistake."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        judged = case.failure_of("plain") == "differs" and case.kernel_defects is not None
        possible = case.call is not None and not case.call.request.get("library")
        return self.best if judged and possible and users_kernels(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        texts = [(kernel, dedent(kernel.source)) for kernel in users_kernels(case)]
        found = [(k, text, *each) for k, text in texts for each in corrections_of(k, text, case)]
        for kernel, text, mistake, right in found[:MOST_MENDED]:
            call = tried_call(case)
            change = change_of(kernel.name, mistake, (text, right), "the kernel")
            try:
                # Put the corrected lines into the embedded source.
                lines = kernel.source.split("\n")
                for number, (old, new) in enumerate(zip(text.split("\n"), right.split("\n"), strict=True)):
                    if old != new:
                        lines[number] = lines[number].replace(old.strip(), new.strip())
                made = await with_text(context, call, kernel.name, "\n".join(lines))
            except ProblemError as problem:
                case.notes.append(f"{kernel.name} was not corrected: {problem}")
                continue
            change = replace(change, what=f"the call with {change.what}", options=made)
            case.trials[change.key] = await try_intervention(context, call, change)
            case.users_changes.setdefault((kernel.name, mistake.kind), change)
