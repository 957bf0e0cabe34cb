"""A program that met its time limit outside a call of a package: compiling, waiting, or busy by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.from_log import locations_of
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedCompile
from mcp_server.evidence.facts import ThreadStack
from mcp_server.model import Evidence, Fix, ModelLocation, Party

# Functions of the standard library in which a thread waits for another one (Python 3.9-3.14).
_WAITS = {
    "threading.py": {"wait", "join", "acquire", "_wait_for_tstate_lock", "wait_for"},
    "queue.py": {"get", "put", "join"},
    "_base.py": {"result", "wait", "as_completed"},
    "subprocess.py": {"wait", "_wait", "_try_wait", "communicate", "_communicate"},
    "popen_fork.py": {"wait", "poll"},
    "connection.py": {"_recv", "_poll", "wait"},
    "selectors.py": {"select"},
}


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where the program's own run was ended by its time limit."""
    run = case.runs.get("script")
    seen = case.capture
    if run is None or run.failure != "timeout" or seen is None:
        return
    if any(call.outcome == "unfinished" for call in seen.calls):
        return
    compiling = [compile_ for compile_ in seen.compiles if compile_.outcome == "unfinished"]
    if compiling:
        yield _compiling(compiling[-1], run.finished.wall_s)
        return
    own = [thread for thread in run.log.threads if locations_of(thread.frames_of_user)]
    if own:
        yield _waiting(own) if all(_waits(thread) for thread in own) else _standing(own)


def _waits(thread: ThreadStack) -> bool:
    frame = thread.frames[-1] if thread.frames else None
    return frame is not None and frame.function in _WAITS.get(PurePath(frame.file).name, ())


def _compiling(compile_: CapturedCompile, seconds: float) -> Suspect:
    return Suspect(
        category="hang",
        guilty=Party(kind="script", name=compile_.how, model_locations=compile_.stack[:2]),
        summary=f"The time limit ended the program after {seconds:.0f} s, while it was compiling.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="capture", fact=f"{compile_.how} had begun and not returned"),),
        fix=Fix(action="give it more time (timeout_s); a compile on a busy machine takes minutes"),
        weak=True,
    )


def _waiting(threads: list[ThreadStack]) -> Suspect:
    facts = [f"{thread.thread} waits in {thread.frames[-1].function}" for thread in threads]
    return _outside(
        _lines(threads),
        f"{_all(threads)}, outside any call of a package.",
        facts,
        "end the wait: put what is waited for, or wait with a timeout",
        observed=True,
    )


def _all(threads: list[ThreadStack]) -> str:
    return f"All {len(threads)} threads of the program wait" if len(threads) > 1 else "The program waits"


def _standing(threads: list[ThreadStack]) -> Suspect:
    """Where the program was, when no frame of the standard library says that it waits: it may be slow."""
    lines = _lines(threads)
    facts = [
        f"{thread.thread} stood in {thread.frames[-1].function}, {_place(line)}"
        for thread, line in zip(threads, lines, strict=True)
    ]
    return _outside(
        lines,
        f"At its time limit the program stood at {_place(lines[0])}, outside any call of a package.",
        facts,
        "see what that line waits for or repeats, and give it an end",
        observed=False,
    )


def _lines(threads: list[ThreadStack]) -> list[ModelLocation]:
    return [locations_of(thread.frames_of_user)[0] for thread in threads]


def _place(line: ModelLocation) -> str:
    return f"{line.file}:{line.line}"


def _outside(
    lines: list[ModelLocation], summary: str, facts: list[str], action: str, *, observed: bool
) -> Suspect:
    """A program that did not end, with its threads at these lines."""
    return Suspect(
        category="hang",
        guilty=Party(kind="script", name=_place(lines[0]), model_locations=lines[:4]),
        summary=summary,
        level=CausalLevel.STATE,
        evidence=tuple(Evidence(step="capture", fact=fact) for fact in facts[:4]),
        fix=Fix(action=action),
        observed=observed,
    )
