"""A program that ended with an exception of its own before anything of AOTInductor was asked for.

The hook records every compile, load and call that Python makes. Where it recorded none, no package can have
computed what the program's check refused: the statement that raised is at fault, or what it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.detectors.from_log import evidence_of, locations_of
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.facts import ErrorFact
from mcp_server.model import Evidence, Fix, ModelLocation, Party

# Errors of Python's compiler. For the program's own file they are printed without a traceback.
_UNREADABLE = frozenset({"SyntaxError", "IndentationError", "TabError"})
_PLACE = re.compile(rb'^\s*File "([^"\n]+)", line (\d+)\s*$', re.M)
_OF_TORCH = re.compile(r"[/\\](?:torch|triton)[/\\]")
_TAIL_BYTES = 8192


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where the program's own Python raised and no process reached AOTInductor."""
    script = case.runs.get("script")
    if script is None or script.root is None or script.failure != "exception":
        return
    if not case.never_reached or (case.capture is not None and case.capture.isolated):
        return
    root = script.root
    if _raised(root) in _UNREADABLE:
        yield _hypothesis(root, _place_of(script) or _locations(root), "Python cannot read the program")
    elif _is_own(root):
        yield _hypothesis(root, _locations(root), "The program ended with an exception of its own")


def _raised(root: ErrorFact) -> str:
    return root.exception.type if root.exception is not None else root.text.partition(":")[0].strip()


def _is_own(root: ErrorFact) -> bool:
    """Whether a statement raised, outside of torch, for which no missing module or machine is to blame."""
    if root.exception is None or "script_error" not in root.candidates or "environment" in root.candidates:
        return False
    return not any(_OF_TORCH.search(frame.file) for frame in root.exception.frames)


def _locations(root: ErrorFact) -> list[ModelLocation]:
    return locations_of(tuple(f for f in root.exception.frames if f.user)) if root.exception else []


def _place_of(script: RunSeen) -> list[ModelLocation]:
    """The line that Python's compiler refused: the last that it names without a function."""
    places = _PLACE.findall(script.finished.output.read_bytes()[-_TAIL_BYTES:])
    return [ModelLocation(file=file.decode("utf-8", "replace"), line=int(line)) for file, line in places[-1:]]


def _hypothesis(root: ErrorFact, locations: list[ModelLocation], what: str) -> Suspect:
    place = f"{locations[0].file}:{locations[0].line}" if locations else "the program"
    before = "nothing was compiled, loaded or called before that"
    return Suspect(
        category="script_error",
        guilty=Party(kind="script", name=place, model_locations=locations),
        summary=f"{what}, at {place}: {root.text[:200].rstrip('.')}; AOTInductor was not reached.",
        level=CausalLevel.SYMPTOM,
        evidence=(evidence_of(root, "script"), Evidence(step="capture", fact=before)),
        fix=Fix(
            action="mend that line, or what it is given", before=locations[0].code if locations else None
        ),
    )
