"""Reads the journals of the capture hook into typed records, and finds the call that will not come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import isfinite, prod
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mcp_server.errors import read_json
from mcp_server.logs import captured
from mcp_server.model import ModelLocation

Event = dict[str, Any]  # one line of a journal: the records of `logs.captured` check it
R = TypeVar("R", bound=captured.JournalRecord)

# The event that begins a phase, the key of its number, and the events that end it well and badly.
PHASES = {
    "compiling": ("compile", "compiled", "compile_failed"),
    "loading": ("load", "loaded", "load_failed"),
    "updating": ("update", "updated", "update_failed"),
    "calling": ("call", "called", "call_failed"),
}
OF_THE_END = ("outputs", "package", "seconds", "raced", "rewritten", "returned")


def read_capture(directory: Path) -> captured.Captured:
    """All journals in `directory`; lines cut by a crash, or written by anyone else, are left out."""
    events: list[Event] = []
    for journal in sorted(directory.glob("capture-*[0-9].jsonl")):
        tails = sorted(journal.parent.glob(journal.stem + ".tail*.jsonl"))
        of_process = [event for path in (journal, *tails) for event in _events(path)]
        events += sorted(of_process, key=lambda event: float(event["n"]))
    events.sort(key=lambda event: float(event["t"]))
    return captured.Captured(
        processes=_processes(events),
        compiles=_phases(events, "compiling", captured.CapturedCompile),
        packagings=_single(events, "packaging", captured.CapturedPackaging),
        loads=_phases(events, "loading", captured.CapturedLoad),
        hosts=_single(events, "host", captured.CapturedHost),
        updates=_phases(events, "updating", captured.CapturedUpdate),
        calls=_phases(events, "calling", captured.CapturedCall),
        exports=_single(events, "exporting", captured.CapturedExport),
        assertions=_single(events, "assertion_failed", captured.CapturedAssertion),
        replays=_single(events, "graph_input_gone", captured.FreedInput),
        cross_stream_frees=_single(events, "input_let_go", captured.FreedInput),
        ends=_single(events, "program_failed", captured.CapturedEnd),
    )


def _events(path: Path) -> Iterator[Event]:
    """The lines that have what every event has."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                event = read_json(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    numbers = [event.get(name) for name in ("n", "t", "pid")]
                    whole = all(isinstance(number, int | float) and isfinite(number) for number in numbers)
                    if whole and isinstance(event.get("frames", []), list):
                        yield event


def _processes(events: list[Event]) -> list[captured.CapturedProcess]:
    exits = {event["pid"] for event in events if event["event"] == "exit"}
    processes = []
    for pid, event in {event["pid"]: event for event in events if event["event"] == "process"}.items():
        failures = {str(e.get("error")) for e in events if e["event"] == "hook_failed" and e["pid"] == pid}
        facts = {**event, "exited": pid in exits, "hook_failures": sorted(failures)}
        processes += _built(captured.CapturedProcess, facts)
    return processes


def _phases(events: list[Event], begin: str, kind: type[R]) -> list[R]:
    """Each beginning joined with its end, if it has one."""
    number, well, badly = PHASES[begin]
    ends = {(e["pid"], str(e.get(number))): e for e in events if e["event"] in (well, badly)}
    found = []
    for event in (e for e in events if e["event"] == begin):
        end = ends.get((event["pid"], str(event.get(number))))
        joined = {**event, "number": event.get(number)}
        if end is not None and end["event"] == badly:
            joined = _failed(joined, end)
        elif end is not None:
            joined |= {key: end[key] for key in OF_THE_END if end.get(key) is not None}
            joined["outcome"] = "ok"
        found += _built(kind, _of_phase(joined))
    return found


def _single(events: list[Event], name: str, kind: type[R]) -> list[R]:
    """Records of one event each."""
    found = [event for event in events if event["event"] == name]
    whole = [_failed(event, event) if name.endswith("_failed") else event for event in found]
    return [record for event in whole for record in _built(kind, _of_phase(event))]


def _failed(begun: Event, end: Event) -> Event:
    known = {name: end[name] for name in ("refilled", "retained") if end.get(name)}
    return {**begun, **known, "outcome": "failed", "seconds": end.get("seconds"), "error": end}


def _of_phase(event: Event) -> Event:
    """The fields of a phase; a file that is gone by now is no file."""
    facts = {**event, "copy_path": event.get("copy")}
    frames = (frame for frame in event.get("frames", ()) if isinstance(frame, dict))
    facts["stack"] = [{key: frame.get(key) for key in ModelLocation.model_fields} for frame in frames]
    if event.get("package") is None:
        facts["package"] = event.get("package_path")
    gone = {file: None for file in ("file", "returned") if not Path(str(event.get(file))).exists()}
    return facts | gone


def _built(kind: type[R], facts: Event) -> list[R]:
    """The record; none from a damaged event."""
    try:
        return [kind.model_validate(facts)]
    except ValidationError:
        return []


SLOWER = 100.0  # times as long as any call before
LARGER = 8.0  # times as many elements as the largest of those, at most, for them to compare


def stalled_call(seen: captured.Captured, now: float, least_s: float) -> captured.CapturedCall | None:
    """The only call that is under way, where it takes far longer than calls of its kind.

    `now` in seconds of the wall clock; nothing younger than `least_s` is stalled. None where no call of that
    package has ended well, where those were much smaller, and where more than one is under way: threads may
    wait for each other.
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
