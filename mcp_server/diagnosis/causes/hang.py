"""Calls and programs that do not return, and what the stacks of their threads show."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePath

from mcp_server.diagnosis.causes.log_text import is_ours, locations_of
from mcp_server.diagnosis.components import component, depends_on, launch_component, seen
from mcp_server.diagnosis.state import HANGING_S, DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.facts import ThreadStack
from mcp_server.model import Fix, ModelLocation
from mcp_server.plurals import capitalized

_Hang = partial(Suspect, category="hang", level=CausalLevel.STATE)


def operator_inside(stacks: Sequence[ThreadStack], case: DiagnosisState) -> str:
    """The custom operator in which a thread is, recognised by its function name. Empty if none."""
    named = {frame.function for stack in stacks for frame in stack.frames if frame.user}
    functions = {name.rpartition(".")[2] for name in named}
    nodes = case.package.proxy_nodes if case.package is not None else ()
    names = ((target, target.partition("::")[2].partition(".")[0]) for target in nodes)
    return next((target for target, name in names if name in functions), "")


def lines_inside(stacks: Sequence[ThreadStack]) -> list[ModelLocation]:
    """The user's innermost line of each thread, in a custom operator or at a call. At most 3."""
    own = [[f for f in stack.frames if f.user and not is_ours(f.file)] for stack in stacks]
    lines = [ModelLocation(file=f.file, line=f.line, code=f.code) for frames in own for f in frames[-1:]]
    return list({(line.file, line.line): line for line in lines}.values())[:3]


def hung_inside(case: DiagnosisState) -> bool:
    """Whether the program hung in exactly one open call, which can be repeated with probes.

    False for calls in a Python operator, after a fork, or after updates, which a trace cannot repeat.
    """
    run, open_calls = case.script_run, [call for call in case.calls if call.outcome == "unfinished"]
    if run is None or run.failure != "timeout" or case.view is None:
        return False
    request = case.call.request if case.call is not None else None
    if request is None or len(open_calls) != 1 or any(s["do"] != "call" for s in request.get("steps", ())):
        return False
    return case.captured.load_of(open_calls[0]) is not None and not operator_inside(run.log.threads, case)


def to_be_traced(case: DiagnosisState) -> bool:
    """Whether to trace the launches of a hanging call before trying anything else with the call."""
    return hung_inside(case) and "trace_launches" not in case.done


def shown_by_trace(case: DiagnosisState) -> bool:
    """Whether the traced call did not end either, so that the call hangs by itself."""
    failure = case.trace.failure if case.trace is not None else None
    return hung_inside(case) and failure is not None and failure.ending == "timeout"


def call_hangs(case: DiagnosisState) -> bool:
    """Whether the repeated call, unchanged or with probes, did not return."""
    plain = case.plain_run
    return plain.failure == "timeout" if plain is not None else shown_by_trace(case)


def end_of(op: str) -> str:
    """Advice that makes a call end. Empty if the waiting operator is unknown."""
    return f"add an end condition or a timeout to the loop or wait in {op}" if op else ""


def fix_if(action: str) -> Fix | None:
    return Fix(text=action) if action else None


def detect_hanging_call(case: DiagnosisState) -> Iterator[Suspect]:
    """A repeated call that does not return, and the operator that it is in, if a stack shows it."""
    plain = case.plain_run
    if case.capture is not None or plain is None or plain.failure != "timeout":
        return
    op = operator_inside(plain.log.threads, case)
    if not op and case.trace is not None and case.trace.last is not None:
        return  # the trace names the launch
    lines = lines_inside(plain.log.threads)
    fact = f"the call had not returned after {plain.finished.wall_s:.0f} s"
    yield _Hang(
        guilty=component("op" if op else "call", op or "call of the package", lines),
        summary=f"{capitalized(fact)}, its time limit{f', and is inside {op}' if op else ''}.",
        evidence=(seen("run", fact),),
        fix=fix_if(end_of(op)),
        observed=bool(op),
    )


GIL_AND_RUNNER = (
    "Several threads are inside calls of one package and none returns: a call holds the GIL while "
    "it waits for a free runner, and the thread that has the runner waits for the GIL.",
    "give every thread its own runner (num_runners), or hold a lock around the call",
)
# fork() does not recreate the OpenMP pool (libgomp, and torch's own pool, on Linux).
FORKED = (
    "A call did not return in a process that was forked after the package was loaded: it "
    "waits for compute threads of the parent, which do not exist in the child.",
    "start the workers with 'spawn' (in C++, fork before the first call), or load and call the package only "
    "in the children",
)


def _still_calling(case: DiagnosisState) -> bool:
    """Whether the last call had only just begun at the time limit, after other calls had returned."""
    returned = any(call.outcome == "ok" for call in case.calls)
    return returned and case.capture is not None and case.capture.quiet_s < WAITING_S


def detect_waiting_calls(case: DiagnosisState) -> Iterator[Suspect]:
    """Threads inside a call when the time ran out, or in a process forked after the load."""
    run, hooked = case.script_run, case.captured
    inside = [c for c in hooked.calls if c.outcome == "unfinished"]
    # Calls in a process forked after its parent loaded the model. The parent may end both before the limit.
    parents = {process.pid: process.parent for process in hooked.processes if not process.exited}
    loaded = {load.pid for load in hooked.loads}
    forked = [c for c in inside if hooked.load_of(c) is None and parents.get(c.pid) in loaded]
    if run is None or not (forked or (inside and run.failure == "timeout" and not _still_calling(case))):
        return
    inside = forked or inside
    first, threads = inside[0], len({call.thread for call in inside})
    stuck = [call.thread_name for call in inside[:4]]
    op = operator_inside(run.log.threads, case)
    known = {(line.file, line.line) for line in first.stack[:2]}
    lines = [line for line in lines_inside(run.log.threads) if (line.file, line.line) not in known]
    name = op or "call of the package"
    ended = f"after {run.finished.wall_s:.0f} s, when the program was ended"
    summary, action = f"A call of the package had not returned {ended}.", end_of(op)
    if threads > 1:
        name = f"call of the package from {threads} threads" + (f", one inside {op}" if op else "")
        summary, action = GIL_AND_RUNNER
    if forked:
        (summary, action), lines = FORKED, []
    yield _Hang(
        guilty=component("op" if op and threads == 1 else "call", name, [*lines, *first.stack[:2]]),
        summary=summary,
        evidence=tuple(seen("capture", f"thread {name} entered a call and did not return") for name in stuck),
        fix=fix_if(action),
        observed=threads > 1 or (bool(forked) and case.failure_of("plain") == "none"),
    )


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


# Taking a lock happens in C, without a frame: the source line shows it.
_TAKES_LOCK = re.compile(r"\s*(?:with\b.*lock|.*\.acquire\()", re.IGNORECASE)
WAITING_S = 10.0  # if all threads still wait after this time, the program is not just slow
# What a program did at its time limit: a sentence about it, and advice.
_AT_ITS_LIMIT = {
    "compiling": (
        "it was compiling, and its processes on this machine had used no processor time for a while",
        "see what the compile waits for, such as the lock of a cache that another process holds; for a "
        "compile on another machine, give it more time (timeout_s)",
    ),
    "working": (
        "it was at {place}, {quiet:.0f} s after its last start, compile, load or call, and may only be slow",
        "give it more time (timeout_s, and budget_s of the diagnosis)",
    ),
    "waiting": (
        "{who} waited, outside any call of a package",
        "add a timeout to these waits, such as get(timeout=60) or join(60), so that the program says what "
        "did not arrive",
    ),
    "elsewhere": (
        "it was at {place}, outside any call of a package",
        "add a timeout or an end condition to the wait or loop at that line",
    ),
}


def _waits(thread: ThreadStack) -> bool:
    """Whether the thread waits for another one, according to its innermost frame."""
    frame = thread.frames[-1]
    in_library = frame.function in _WAITS.get(PurePath(frame.file).name, ())
    return in_library or (frame.user and bool(_TAKES_LOCK.match(linecache.getline(frame.file, frame.line))))


def detect_no_end(case: DiagnosisState) -> Iterator[Suspect]:
    """A program that its time limit ended outside any call."""
    run, capture = case.script_run, case.capture
    if run is None or run.failure != "timeout" or capture is None:
        return
    compiling = next((each for each in capture.compiles[::-1] if each.outcome == "unfinished"), None)
    threads = [thread for thread in run.log.threads if locations_of(thread.frames_of_user)]
    inside = any(call.outcome == "unfinished" for call in capture.calls) and not _still_calling(case)
    if inside or not (compiling or threads):
        return
    waits, quiet = all(map(_waits, threads)), capture.quiet_s
    recent = quiet < (WAITING_S if waits else HANGING_S)
    does = "compiling" if compiling else "working" if recent else "waiting" if waits else "elsewhere"
    lines = compiling.stack[:2] if compiling else [locations_of(t.frames_of_user)[0] for t in threads]
    codes = [each.code or linecache.getline(each.file, each.line).strip()[:200] for each in lines]
    lines = [each.model_copy(update={"code": code}) for each, code in zip(lines, codes, strict=True)]
    place = compiling.how if compiling else f"{lines[0].file}:{lines[0].line}"
    said, advice = _AT_ITS_LIMIT[does]
    who = f"all {len(threads)} threads of the program" if threads[1:] else "the program"
    functions = [each.frames[-1].function.replace("<module>", "the script itself") for each in threads[:4]]
    named = f"thread {{}} of {len(threads)}" if threads[1:] else "the program"
    at = [f"{named.format(n)} was in {function}" for n, function in enumerate(functions, 1)]
    told = said.format(quiet=quiet, who=who, place=place)
    yield _Hang(
        guilty=component("script", place, lines[:4]),
        summary=f"The program {run.finished.note or 'did not end in time'}: {told}.",
        evidence=tuple(seen("capture", fact) for fact in (at if does != "compiling" else [told])),
        fix=Fix(text=advice),
        observed=does == "waiting" and quiet >= HANGING_S,
        weak=does in ("compiling", "working"),
    )


TURNS = 4  # passes of a loop among the last launches that show that it is endless


def looping(case: DiagnosisState) -> list[int]:
    """The launches that were repeating at the time limit, in code order. Empty if there is no loop."""
    trace = case.trace
    if trace is None or case.view is None or not call_hangs(case):
        return []
    known = case.view.wrapper.launches
    inside = [row for row in trace.launches if row.launch < len(known) and known[row.launch].context]
    turns = Counter(row.launch for row in inside)
    last = turns[trace.launches[-1].launch] if trace.launches else 0
    return sorted(turns) if last >= TURNS else []


def detect_endless_loop(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect the first launch in the loop, which computes whether the loop continues."""
    numbers = looping(case)
    if not numbers or case.trace is None or case.view is None:
        return
    first, total = case.view.wrapper.launches[numbers[0]], case.trace.total
    fact = f"{total} launches, the last of which repeat: {', '.join(map(str, numbers[:6]))}"
    condition = depends_on(first.index, case, "; its condition depends on")
    party = launch_component(first.index, first.kernel, case)
    yield _Hang(
        guilty=party,
        summary=f"The loop that begins with launch {first.index} ({first.kernel}) does not end: "
        f"{total} launches had returned when the time ran out{condition}.",
        evidence=(seen("trace_launches", fact),),
        crashing=party,
        fix=Fix(text="limit the number of iterations in the loop's condition, or see why it stays true"),
    )
