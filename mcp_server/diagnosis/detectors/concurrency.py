"""Calls that overlap: lost updates without synchronisation, and threads that wait for each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.stacks import lines_inside, operator_inside
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import Captured, CapturedCall, CapturedLoad
from mcp_server.evidence.facts import ThreadStack
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Suspect]:
    """Overlapping calls of one model, judged by how it was loaded and how the program ended."""
    if case.capture is None:
        yield from _hanging_call(case)
        return
    for load in case.capture.loads:
        pair = overlapping(case.capture, load)
        if pair is not None and load.options.get("run_single_threaded"):
            yield _unsynchronised(load, pair, case)
    yield from _moved(case)
    run = case.runs.get("script")
    if run is not None and run.failure == "timeout":
        yield from _waiting(case, run.log.threads)


def overlapping(capture: Captured, load: CapturedLoad) -> tuple[CapturedCall, CapturedCall] | None:
    """Two calls of one loaded model, by different threads, that ran at the same time."""
    calls = [c for c in capture.calls if (c.pid, c.load) == (load.pid, load.number)]
    calls.sort(key=lambda c: c.t)
    for place, first in enumerate(calls):
        end = first.t + (first.seconds if first.seconds is not None else math.inf)
        for second in calls[place + 1 :]:
            if second.t >= end:
                break
            if second.thread != first.thread:
                return first, second
    return None


def _unsynchronised(load: CapturedLoad, pair: tuple[CapturedCall, CapturedCall], case: Case) -> Suspect:
    fact = f"threads {pair[0].thread_name} and {pair[1].thread_name} were inside the model at the same time"
    return Suspect(
        category="concurrency",
        guilty=Party(
            kind="call",
            name="run_single_threaded=True, called from several threads",
            model_locations=[*load.stack[:1], *pair[0].stack[:1]],
        ),
        summary="The package was loaded with run_single_threaded=True, which does no synchronisation, "
        "and several threads called it at the same time.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(step="capture", fact=fact),
            Evidence(step="capture", fact="the model was loaded with run_single_threaded=True"),
        ),
        # Without run_single_threaded a Python operator that waits can hold the GIL in one thread while
        # another one waits for its runner (torch 2.13): only a lock is right for every model.
        fix=Fix(
            action="let one thread at a time call it: hold a lock around the call",
            before="model(*inputs)",
            after="with lock:\n    model(*inputs)",
        ),
        harmful=case.failed,
    )


def _waiting(case: Case, stacks: Sequence[ThreadStack]) -> Iterator[Suspect]:
    """Threads that were all inside a call when the time ran out."""
    assert case.capture is not None
    inside = [call for call in case.capture.calls if call.outcome == "unfinished"]
    threads = {call.thread for call in inside}
    if not inside:
        return
    several = len(threads) > 1
    at = inside[0]
    known = {(line.file, line.line) for line in at.stack[:2]}
    place = [line for line in lines_inside(stacks) if (line.file, line.line) not in known]
    op = operator_inside(stacks, case)
    forked = _is_forked(at, case.capture)
    yield Suspect(
        category="hang",
        guilty=Party(
            kind="op" if op and not several else "call",
            name=_name(op, len(threads)),
            model_locations=[*(() if forked else place), *at.stack[:2]],
        ),
        summary=_FORKED if forked else _hang_summary(several),
        level=CausalLevel.STATE,
        evidence=tuple(
            Evidence(step="capture", fact=f"thread {call.thread_name} entered a call and did not come back")
            for call in inside[:4]
        ),
        fix=Fix(action=_UNFORKED if forked else _hang_action(several, op)),
        observed=several,
    )


# The pool of OpenMP is not made anew after fork() (libgomp, and torch's own pool, on Linux).
_FORKED = (
    "A call did not come back in a process that was forked after the package was loaded: the threads with "
    "which the parent computes do not exist in it, and the call waits for them."
)
_UNFORKED = "start the workers with 'spawn', or load and call the package in the children alone"


def _is_forked(call: CapturedCall, capture: Captured) -> bool:
    """Whether the call used a load of the process from which its own was forked."""
    parents = {process.parent for process in capture.processes if process.pid == call.pid}
    return capture.load_of(call) is None and any(load.pid in parents for load in capture.loads)


def _hang_action(several: bool, op: str) -> str:
    if several:
        return "give every thread its own runner (num_runners), or hold a lock around the call"
    return (
        f"give the loop or wait in {op} an end"
        if op
        else "find the launch that does not end with trace_launches"
    )


def _hanging_call(case: Case) -> Iterator[Suspect]:
    """A replayed call that does not come back, with the operator in which it is, where a stack tells."""
    plain = case.runs.get("plain")
    if plain is None or plain.failure != "timeout":
        return
    places = lines_inside(plain.log.threads)
    op = operator_inside(plain.log.threads, case)
    if not op and case.trace is not None and case.trace.last is not None:
        return  # the journal says more
    yield Suspect(
        category="hang",
        guilty=Party(kind="op" if op else "call", name=op or "call of the package", model_locations=places),
        summary=f"The call does not come back within its time limit{': it is inside ' + op if op else ''}.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="run", fact=f"no end after {plain.finished.wall_s:.0f} s"),),
        fix=Fix(action=_hang_action(False, op)),
        observed=bool(op),
    )


def _name(op: str, threads: int) -> str:
    if threads > 1:
        return f"call of the package from {threads} threads" + (f", one inside {op}" if op else "")
    return op or "call of the package"


def _hang_summary(several: bool) -> str:
    if several:
        return (
            "Several threads are inside calls of one package and none comes back: a call holds the GIL while "
            "it waits for a free runner, and the thread that has the runner waits for the GIL."
        )
    return "A call of the package did not come back within the time limit."


def _moved(case: Case) -> Iterator[Suspect]:
    """User-managed constants whose memory was freed or moved between their update and a call."""
    assert case.capture is not None
    call = next((c for c in case.capture.calls if c.moved), None)
    if call is None:
        return
    names = ", ".join(call.moved[:4])
    update = next((u for u in case.capture.updates if set(call.moved) <= set(u.constants)), None)
    yield Suspect(
        category="concurrency",
        guilty=Party(
            kind="constant",
            name=call.moved[0],
            model_locations=[*(update.stack[:1] if update else []), *call.stack[:1]],
        ),
        summary=f"The memory of user-managed constant {names} was freed or moved after load_constants: the "
        "package keeps its old address and reads whatever is there now.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(
                step="capture", fact=f"at the call, {names} is no longer where load_constants was given it"
            ),
        ),
        fix=Fix(
            action="keep the tensors given with user_managed=True where they are, or call load_constants "
            "again after they moved"
        ),
        harmful=case.failed,
    )
