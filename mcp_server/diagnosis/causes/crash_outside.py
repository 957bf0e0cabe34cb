"""A signal that ended the program in a line of its own, while nothing of AOTInductor ran."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from mcp_server.diagnosis.causes.common import seen
from mcp_server.diagnosis.causes.log_text import WORKER
from mcp_server.diagnosis.components import line_in_script, script_text
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import Captured, Phase
from mcp_server.logs.facts import ThreadStack
from mcp_server.model import Component, Fix, ModelLocation, ScriptWorkload
from mcp_server.plurals import counted

# Signals of the instruction that was running. SIGABRT is not one: the C library's own checks of the heap end
# a process with it, at a place that says nothing of who damaged it.
_AT_THE_LINE = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE"})
_NOT_THE_PROGRAM = re.compile(
    r"[/\\]torch[/\\](?:_inductor|_export|export|_dynamo|_functorch|_library|_ops\.py)|[/\\]triton[/\\]"
)
# Statements that may end a package, so that its own C++ code was running.
_RELEASES = re.compile(r"del\b|gc\.collect\(|.*=\s*None$|with\b")


def detect_crash_outside(case: DiagnosisState) -> Iterator[Suspect]:
    """The user's line that died while no compile, load, update or call was open; the last call is sound."""
    script, capture = case.runs.get("script"), case.capture
    if script is None or capture is None or script.finished.signal not in _AT_THE_LINE:
        return
    if _open(capture) or case.failure_of("plain") not in (None, "none"):
        return
    if any(error.family.id == "heap_corruption" for error in script.log.errors):
        return
    stack = next((thread for thread in script.log.threads if thread.current), None)
    lines = _lines(stack, case) if stack is not None else []
    if stack is not None and lines and not any(_of_aotinductor(frame.file) for frame in stack.frames):
        yield _suspect(script.finished.signal or "", lines, len(capture.calls), case)


def _open(capture: Captured) -> bool:
    phases: list[Phase] = [*capture.compiles, *capture.loads, *capture.updates, *capture.calls]
    return any(phase.outcome == "unfinished" for phase in phases)


def _of_aotinductor(file: str) -> bool:
    return bool(_NOT_THE_PROGRAM.search(file)) or file.startswith(WORKER)


def _lines(stack: ThreadStack, case: DiagnosisState) -> list[ModelLocation]:
    """The user's lines, innermost first, with the code of the script, which the stack of a crash lacks."""
    text = script_text(case)
    script = case.workload.script.name if isinstance(case.workload, ScriptWorkload) else ""
    return [
        line_in_script(case, text, frame.line)
        if PurePath(frame.file).name == script and 0 < frame.line <= len(text.splitlines())
        else ModelLocation(file=frame.file, line=frame.line)
        for frame in reversed(stack.frames_of_user[-3:])
    ]


def _suspect(signal: str, lines: list[ModelLocation], calls: int, case: DiagnosisState) -> Suspect:
    place = f"{lines[0].file}:{lines[0].line}"
    before = f" after {counted(calls, 'call')} that came back" if calls else ""
    facts = [
        seen("read_log", f"{signal} ended the program at {place}"),
        seen("capture", f"no compile, load, update or call was open{before}"),
    ]
    if case.failure_of("plain") == "none":
        facts.append(seen("run", "the last call, made again in a process of its own, went well"))
    late = (
        " A package that had written beyond its memory in an earlier call could show as this, too; nothing "
        "points to that."
    )
    return Suspect(
        category="script_error",
        guilty=Component(kind="script", name=place, model_locations=lines),
        summary=f"The program died of {signal} at {place}, in code of its own: no compile, load or call of "
        f"AOTInductor was running.{late if calls else ''}",
        level=CausalLevel.SYMPTOM,
        evidence=tuple(facts),
        fix=Fix(
            action="see what memory that line reads or writes: what owns it (a mapping, a buffer, a file, a "
            "C library) has to stay open until then, or the tensor has to be a copy",
        ),
        harmful=case.failed,
        observed=not _RELEASES.match(lines[0].code),
    )
