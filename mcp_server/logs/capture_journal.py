"""Reads the journals of the capture hook into typed records, and finds the call that will not come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, prod
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from mcp_server.errors import read_json
from mcp_server.logs import captured
from mcp_server.model import ModelLocation

R = TypeVar("R", bound=captured.JournalRecord)
Facts = Mapping[str, object]  # the records of `logs.captured` check them


@dataclass(frozen=True)
class Line:
    """One event of a journal, number `n` of the process `pid`."""

    event: str
    pid: float
    n: float
    t: float
    facts: Facts


# Of phases: the event that begins one, the key of its number, and the events that end it well and badly.
COMPILES = ("compiling", "compile", "compiled", "compile_failed")
LOADS = ("loading", "load", "loaded", "load_failed")
UPDATES = ("updating", "update", "updated", "update_failed")
CALLS = ("calling", "call", "called", "call_failed")
OF_THE_END = ("outputs", "package", "seconds")


def read_capture(directory: Path) -> captured.Captured:
    """All journals in `directory`; lines cut by a crash, or written by anyone else, are left out."""
    lines: list[Line] = []
    for journal in sorted(directory.glob("capture-*[0-9].jsonl")):
        tails = sorted(journal.parent.glob(journal.stem + ".tail*.jsonl"))
        lines += sorted((line for path in (journal, *tails) for line in _lines(path)), key=attrgetter("n"))
    lines.sort(key=attrgetter("t"))
    return captured.Captured(
        processes=_processes(lines),
        compiles=_phases(lines, COMPILES, captured.CapturedCompile),
        overwritings=_single(lines, "overwriting", captured.CapturedOverwriting),
        loads=_phases(lines, LOADS, captured.CapturedLoad),
        hosts=_single(lines, "host", captured.CapturedHost),
        updates=_phases(lines, UPDATES, captured.CapturedUpdate),
        calls=_phases(lines, CALLS, captured.CapturedCall),
        attempts=_single(lines, "attempted", captured.CapturedAttempts),
        assertions=_single(lines, "assertion_failed", captured.CapturedAssertion),
        memory=_single(lines, "memory", captured.MemoryEvent),
        ends=_single(lines, "program_failed", captured.FailedCheck),
    )


def _lines(path: Path) -> Iterator[Line]:
    """The lines of a journal that have all the fields of an event."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            with suppress(ValueError):
                facts = read_json(text)
                if isinstance(facts, dict) and isinstance(facts.get("event"), str):
                    numbers = [facts.get(name) for name in ("pid", "n", "t")]
                    whole = all(isinstance(number, int | float) and isfinite(number) for number in numbers)
                    if whole and isinstance(facts.get("frames", []), list):
                        yield Line(facts["event"], facts["pid"], facts["n"], facts["t"], facts)


def _of(lines: list[Line], event: str) -> list[Line]:
    return [line for line in lines if line.event == event]


def _processes(lines: list[Line]) -> list[captured.CapturedProcess]:
    exits = {line.pid for line in _of(lines, "exit")}
    failed, processes = _of(lines, "hook_failed"), []
    for pid, line in {line.pid: line for line in _of(lines, "process")}.items():
        failures = {str(each.facts.get("error")) for each in failed if each.pid == pid}
        facts = {**line.facts, "exited": pid in exits, "hook_failures": sorted(failures)}
        processes += _built(captured.CapturedProcess, facts)
    return processes


def _phases(lines: list[Line], phase: tuple[str, str, str, str], kind: type[R]) -> list[R]:
    """Each beginning joined with its end, if it has one."""
    begin, number, well, badly = phase
    ended = (line for line in lines if line.event in (well, badly))
    ends = {(line.pid, str(line.facts.get(number))): line for line in ended}
    found = []
    for line in _of(lines, begin):
        end = ends.get((line.pid, str(line.facts.get(number))))
        joined = {**line.facts, "number": line.facts.get(number)}
        if end is not None and end.event == badly:
            joined = _failed(joined, end.facts)
        elif end is not None:
            joined |= {key: end.facts[key] for key in OF_THE_END if end.facts.get(key) is not None}
            joined["outcome"] = "ok"
        found += _built(kind, _of_phase(joined))
    return found


def _single(lines: list[Line], event: str, kind: type[R]) -> list[R]:
    """Records of one event each."""
    found = [line.facts for line in _of(lines, event)]
    whole = [_failed(facts, facts) if event.endswith("_failed") else facts for facts in found]
    return [record for facts in whole for record in _built(kind, _of_phase(facts))]


def _failed(begun: Facts, end: Facts) -> dict[str, object]:
    return {**begun, "outcome": "failed", "seconds": end.get("seconds"), "error": end}


def _of_phase(event: Facts) -> Facts:
    """The fields of a phase; `file` is None if the file is gone by now."""
    facts = {**event, "copy_path": event.get("copy")}
    frames = event.get("frames")
    if isinstance(frames, list):
        parts = [frame for frame in frames if isinstance(frame, dict)]
        facts["stack"] = [{key: part.get(key) for key in ModelLocation.model_fields} for part in parts]
    if event.get("package") is None:
        facts["package"] = event.get("package_path")
    return facts if Path(str(event.get("file"))).exists() else facts | {"file": None}


def _built(kind: type[R], facts: Facts) -> list[R]:
    """The record, in a list that is empty for a damaged event."""
    try:
        return [kind.model_validate(facts)]
    except ValidationError:
        return []


SLOWER = 100.0  # times as long as any call before
LARGER = 8.0  # times as many elements as the largest of those, at most, for them to compare


def stalled_call(seen: captured.Captured, now: float, least_s: float) -> captured.CapturedCall | None:
    """The only call that is under way, if it takes far longer than other calls of its load.

    `now` in seconds of the wall clock; nothing younger than `least_s` is stalled. None if no call of that
    load has succeeded, if the successful calls were much smaller, or if more than one call is under way:
    threads may wait for each other.
    """
    under_way = [call for call in seen.calls if call.outcome == "unfinished" and not call.in_graph]
    if len(under_way) != 1:
        return None
    call = under_way[0]
    alike = [c for c in seen.calls if (c.pid, c.load, c.outcome) == (call.pid, call.load, "ok")]
    if not alike or _elements(call) > LARGER * max(map(_elements, alike)):
        return None
    usual = max(earlier.seconds or 0.0 for earlier in alike)
    return call if now - call.t >= max(least_s, SLOWER * usual) else None


def _elements(call: captured.CapturedCall) -> int:
    return sum(prod(leaf.shape or ()) for leaf in call.leaves)
