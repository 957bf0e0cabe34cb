"""Calls that do not come back, and what the stacks of their threads tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from mcp_server.diagnosis.causes.log_text import WORKER, locations_of
from mcp_server.diagnosis.components import launch_component
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCompile
from mcp_server.logs.facts import ThreadStack
from mcp_server.model import Component, Evidence, Fix, ModelLocation


def operator_inside(stacks: Sequence[ThreadStack], case: DiagnosisState) -> str:
    """The package's own operator that a thread is inside, told by the name of its function."""
    functions = {
        frame.function.rpartition(".")[2] for stack in stacks for frame in stack.frames if frame.user
    }
    nodes = case.package.proxy_nodes if case.package is not None else ()
    for target in dict.fromkeys(node.target for node in nodes):
        if target.partition("::")[2].partition(".")[0] in functions:
            return target
    return ""


def lines_inside(stacks: Sequence[ThreadStack]) -> list[ModelLocation]:
    """The user's innermost line of each thread: below a call, inside an operator of the user's own."""
    found = {}
    for stack in stacks:
        own = [frame for frame in stack.frames if frame.user and not frame.file.startswith(WORKER)]
        if own:
            place = ModelLocation(file=own[-1].file, line=own[-1].line, code=own[-1].code)
            found[place.file, place.line] = place
    return list(found.values())[:3]


def hung_inside(case: DiagnosisState) -> bool:
    """Whether the program did not end for one call, of one thread, that can be made again with probes.

    Not where several threads wait, the call is in an operator in Python, its load was made before a fork, or
    its constants were updated, which a traced call does without.
    """
    run, seen = case.runs.get("script"), case.capture
    if run is None or seen is None or run.failure != "timeout" or case.view is None:
        return False
    open_calls = [call for call in seen.calls if call.outcome == "unfinished"]
    request = case.call.request if case.call is not None else None
    if request is None or len(open_calls) != 1 or any(s["do"] != "call" for s in request.get("steps", ())):
        return False
    return seen.load_of(open_calls[0]) is not None and not operator_inside(run.log.threads, case)


def to_be_traced(case: DiagnosisState) -> bool:
    """Whether the launches of such a call are to be looked at before anything else is tried with it."""
    return hung_inside(case) and "trace_launches" not in case.done


def shown_by_trace(case: DiagnosisState) -> bool:
    """Whether the traced call did not end either: then it is known to hang by itself."""
    failure = case.trace.failure if case.trace is not None else None
    return hung_inside(case) and failure is not None and failure.ending == "timeout"


def call_hangs(case: DiagnosisState) -> bool:
    """Whether the call, made again as it was or with probes, did not come back."""
    plain = case.runs.get("plain")
    return plain.failure == "timeout" if plain is not None else shown_by_trace(case)


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


def detect_no_end(case: DiagnosisState) -> Iterator[Suspect]:
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
        guilty=Component(kind="script", name=compile_.how, model_locations=compile_.stack[:2]),
        summary=f"The time limit ended the program after {seconds:.0f} s, while it was compiling.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="capture", fact=f"{compile_.how} had started and did not return"),),
        fix=Fix(action="give it more time (timeout_s); a compile on a busy machine takes minutes"),
        weak=True,
    )


def _waiting(threads: list[ThreadStack]) -> Suspect:
    facts = [f"{thread.thread} waits in {thread.frames[-1].function}" for thread in threads]
    return _outside(
        _lines(threads),
        f"{_all(threads)}, outside any call of a package.",
        facts,
        "make sure that the awaited event happens, or wait with a timeout",
        observed=True,
    )


def _all(threads: list[ThreadStack]) -> str:
    return f"All {len(threads)} threads of the program wait" if len(threads) > 1 else "The program waits"


def _standing(threads: list[ThreadStack]) -> Suspect:
    """Where the program was, when no frame of the standard library says that it waits: it may be slow."""
    lines = _lines(threads)
    facts = [
        f"{thread.thread} was in {thread.frames[-1].function}, {_place(line)}"
        for thread, line in zip(threads, lines, strict=True)
    ]
    return _outside(
        lines,
        f"At its time limit the program was at {_place(lines[0])}, outside any call of a package.",
        facts,
        "find out what that line waits for or repeats, and make it end",
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
        guilty=Component(kind="script", name=_place(lines[0]), model_locations=lines[:4]),
        summary=summary,
        level=CausalLevel.STATE,
        evidence=tuple(Evidence(step="capture", fact=fact) for fact in facts[:4]),
        fix=Fix(action=action),
        observed=observed,
    )


TURNS = 4  # of the last launches of the journal, all of which end: no single kernel hangs


def looping(case: DiagnosisState) -> list[int]:
    """The launches that took turns when the time ran out, in the order of the code; empty for no loop."""
    trace = case.trace
    if trace is None or case.view is None or not call_hangs(case):
        return []
    known = case.view.wrapper.launches
    inside = [row for row in trace.launches if row.launch < len(known) and known[row.launch].context]
    turns = Counter(row.launch for row in inside)
    last = turns[trace.launches[-1].launch] if trace.launches else 0
    return sorted(turns) if last >= TURNS else []


def detect_endless_loop(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, with the launch that stands first in the loop: it computes whether to go on."""
    numbers = looping(case)
    if not numbers:
        return
    assert case.trace is not None and case.view is not None
    launch = case.view.wrapper.launches[numbers[0]]
    behind = case.view.inputs_behind(launch.index)
    given = f"; its condition depends on {', '.join(behind[:3])}" if behind else ""
    fact = f"{case.trace.total} launches, the last of them in turns: {', '.join(map(str, numbers[:6]))}"
    party = launch_component(launch.index, launch.kernel, case)
    yield Suspect(
        category="hang",
        guilty=party,
        summary=f"The loop that begins with launch {launch.index} ({launch.kernel}) does not end: "
        f"{case.trace.total} launches had returned when the time ran out{given}.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="trace_launches", fact=fact),),
        crashing=party,
        fix=Fix(action="bound the number of turns in the loop's condition, or check what it waits for"),
    )
