"""A process that the program started, which ended with an exception of its own code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedEnd
from mcp_server.evidence.traceback import is_user_file
from mcp_server.model import Evidence, Fix, ModelLocation, Party
from mcp_server.steps.capture import Capture

_REPORTS = frozenset({"own_check", "child_failed"})
# A check of the child's own may have found what a package computed wrongly.
_CHECK = re.compile(r"(?:raise|assert)\b|self\.fail\(|sys\.exit\(")


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where the calls of that process went well and the program's own failure came later."""
    seen, script = case.capture, case.runs.get("script")
    if seen is None or script is None or script.failure != "exception" or _raised_itself(script):
        return
    found = [(end, _line(end)) for end in _ends(seen, told=script.family == "child_failed")]
    for end, line in [(end, line) for end, line in found if line is not None][-1:]:
        yield _suspect(end, line)


def _ends(seen: Capture, *, told: bool) -> list[CapturedEnd]:
    """Ends of children, or with `told` of any process, whose phases went well and were the program's last.

    A program that went on to other phases got over the end of that child.
    """
    pids = {process.pid for process in seen.processes}
    children = {process.pid for process in seen.processes if told or process.parent in pids}
    phases = [*seen.compiles, *seen.loads, *seen.updates, *seen.calls, *seen.assertions]
    failed = {phase.pid for phase in phases if phase.outcome != "ok"}
    last = max((phase.t for phase in phases), default=0.0)
    return [end for end in seen.ends if end.own and end.t > last and end.pid in children - failed]


def _raised_itself(script: RunSeen) -> bool:
    """Whether the traceback of another error than a check or the report of a child is there."""
    root = script.root
    return root is not None and root.exception is not None and root.family.id not in _REPORTS


def _line(end: CapturedEnd) -> ModelLocation | None:
    """The program's own line that raised, if it was no check."""
    own = next((line for line in end.stack if is_user_file(line.file)), None)
    return own if own is not None and not _CHECK.match(own.code) else None


def _suspect(end: CapturedEnd, line: ModelLocation) -> Suspect:
    raised = (
        f"{end.error.type.removeprefix('builtins.')}: {end.error.text}"
        if end.error is not None
        else "an error"
    )
    place = f"{line.file}:{line.line}"
    fact = f"process {end.pid}, which the program started, ended with {raised[:200]}, at {place}"
    return Suspect(
        category="script_error",
        guilty=Party(kind="script", name=place, model_locations=end.stack[:3]),
        summary=f"A process that the program started ended with {raised[:200]}, at {place}, after its calls "
        "of the package came back; the program's own error is due to that.",
        level=CausalLevel.SYMPTOM,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(action="mend the statement that raised", before=line.code or None),
    )
