"""From the hook's journals to typed records, and to the call that will not come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite, prod
from pathlib import Path
from typing import Any, TypeVar

from mcp_server.errors import read_json
from mcp_server.logs.captured import (
    Captured,
    CapturedAssertion,
    CapturedCall,
    CapturedCompile,
    CapturedEnd,
    CapturedExport,
    CapturedLoad,
    CapturedPackaging,
    CapturedProcess,
    CapturedReplay,
    CapturedUpdate,
    CrossStreamFree,
    Phase,
)

Event = dict[str, Any]
P = TypeVar("P", bound=Phase)

# the event that begins a phase, what numbers it, and the events that end it
PHASES = {
    "compiling": ("compile", "compiled", "compile_failed"),
    "loading": ("load", "loaded", "load_failed"),
    "updating": ("update", "updated", "update_failed"),
    "calling": ("call", "called", "call_failed"),
}
NUMBERS = {event: names[0] for begin, names in PHASES.items() for event in (begin, *names[1:])}


def read_capture(directory: Path) -> Captured:
    """All journals in `directory`; lines cut by a crash, or written by anyone else, are left out."""
    events = [_process_events(path) for path in sorted(directory.glob("capture-*[0-9].jsonl"))]
    merged = sorted((event for of_one in events for event in of_one), key=lambda event: float(event["t"]))
    return Captured(
        processes=list(_processes(merged)),
        compiles=_phases(merged, "compiling", CapturedCompile),
        packagings=[_build(CapturedPackaging, e) for e in merged if e["event"] == "packaging"],
        loads=_phases(merged, "loading", CapturedLoad),
        updates=_phases(merged, "updating", CapturedUpdate),
        calls=_phases(merged, "calling", CapturedCall),
        exports=[_build(CapturedExport, e) for e in merged if e["event"] == "exporting"],
        assertions=[
            _build(CapturedAssertion, _failed(e, e)) for e in merged if e["event"] == "assertion_failed"
        ],
        replays=[_build(CapturedReplay, e) for e in merged if e["event"] == "graph_input_gone"],
        loans=[_build(CrossStreamFree, e) for e in merged if e["event"] == "input_let_go"],
        ends=[_build(CapturedEnd, _failed(e, e)) for e in merged if e["event"] == "program_failed"],
    )


def _process_events(journal: Path) -> list[Event]:
    """Events of one process: its journal, then its tails."""
    tails = sorted(journal.parent.glob(journal.stem + ".tail*.jsonl"))
    events = [event for path in (journal, *tails) for event in _events(path)]
    return sorted(events, key=lambda event: int(event["n"]))


def _events(path: Path) -> Iterator[Event]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = read_json(line)
            except ValueError:
                continue
            if isinstance(event, dict) and _whole(event):
                yield event


def _whole(event: Event) -> bool:
    """Whether it has the parts that every event of its kind has."""
    numbers = [event.get(name) for name in ("n", "t", "pid")]
    frames = event.get("frames", [])
    return (
        isinstance(event.get("event"), str)
        and all(isinstance(number, int | float) and isfinite(number) for number in numbers)
        and isinstance(event.get(NUMBERS.get(event["event"], "n")), int)
        and isinstance(frames, list)
        and all(isinstance(frame, dict) and {"file", "line"} <= frame.keys() for frame in frames)
    )


def _processes(events: Iterable[Event]) -> Iterator[CapturedProcess]:
    begun = {event["pid"]: event for event in events if event["event"] == "process"}
    exits = {event["pid"] for event in events if event["event"] == "exit"}
    for pid, event in begun.items():
        failures = [str(e["error"]) for e in events if e["event"] == "hook_failed" and e["pid"] == pid]
        yield CapturedProcess.model_validate(
            {**event, "exited": pid in exits, "hook_failures": sorted(set(failures))}
        )


def _phases(events: list[Event], begin: str, kind: type[P]) -> list[P]:
    """Each beginning joined with its end, if it has one."""
    number, well, badly = PHASES[begin]
    ends = {(e["pid"], e[number]): e for e in events if e["event"] in (well, badly)}
    found = []
    for event in (e for e in events if e["event"] == begin):
        end = ends.get((event["pid"], event[number]))
        joined = {**event, "number": event[number]}
        if end is not None:
            joined = _failed(joined, end) if end["event"] == badly else _ended(joined, end)
        found.append(_build(kind, joined))
    return found


def _ended(begun: Event, end: Event) -> Event:
    told = ("outputs", "package", "seconds", "raced", "rewritten", "returned")
    extra = {key: end[key] for key in told if end.get(key) is not None}
    return {**begun, **extra, "outcome": "ok"}


def _failed(begun: Event, end: Event) -> Event:
    more = {"refilled": end["refilled"]} if end.get("refilled") else {}
    return {**begun, **more, "outcome": "failed", "seconds": end.get("seconds"), "error": end}


def _build(kind: type[P], event: Event) -> P:
    """A record; a file that is gone by now is no file."""
    facts = {**event, "stack": [_location(frame) for frame in event.get("frames", ())]}
    facts["copy_path"] = event.get("copy")
    if event.get("package") is None:
        facts["package"] = event.get("package_path")
    for file in ("file", "returned"):
        if event.get(file) and not Path(event[file]).exists():
            facts[file] = None
    return kind.model_validate(facts)


def _location(frame: Event) -> dict[str, Any]:
    return {"file": frame["file"], "line": frame["line"], "code": frame.get("code", "")}


SLOWER = 100.0  # times as long as any call before
LARGER = 8.0  # times as many elements as the largest of those, at most, for them to be told alike


def stalled_call(seen: Captured, now: float, least_s: float) -> CapturedCall | None:
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


def _elements(call: CapturedCall) -> int:
    return sum(prod(leaf.shape or ()) for leaf in call.leaves)
