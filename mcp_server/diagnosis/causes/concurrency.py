"""Threads that share a model loaded for one thread, threads that wait for each other, changed inputs."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePath

from mcp_server.diagnosis.causes.hang import FORKED, GIL_AND_RUNNER, end_of, fix_if
from mcp_server.diagnosis.components import (
    component,
    input_component,
    launch_component,
    launch_lines,
    operator_of,
    seen,
    written_inputs,
)
from mcp_server.diagnosis.interventions.base import Intervention, Kind
from mcp_server.diagnosis.state import HANGING_S, DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import Captured, CapturedCall, CapturedLoad
from mcp_server.model import Component, Evidence, Fix
from mcp_server.package.signature import copied_when_misaligned
from mcp_server.plurals import capitalized, counted, listed
from mcp_server.recorder.remains import CONDITION, FUTURE
from mcp_server.tools.in_package import OUTSIDE, ThreadSeen, states_in_words
from mcp_server.tools.running_process import BETWEEN_S, ProcessSeen
from mcp_server.worker.protocol import Change


def detect_overlapping_calls(case: DiagnosisState) -> Iterator[Suspect]:
    """Several threads inside a model that was loaded for one thread."""
    for load in case.captured.loads:
        pair = _overlapping(case.captured, load) if load.options.get("run_single_threaded") else None
        if pair is None:
            continue
        first, second = pair
        fact = f"the threads {first.thread_name!r} and {second.thread_name!r} were inside it at the same time"
        loaded = "the model was loaded with run_single_threaded=True"
        lines = [*load.stack[:1], *first.stack[:1]]
        yield Suspect(
            category="concurrency",
            level=CausalLevel.STATE,
            only_in_program=True,
            guilty=component("call", "run_single_threaded=True, called from several threads", lines),
            summary=f"{capitalized(loaded)}, which turns off its own locks, but {fact}.",
            evidence=tuple(seen("capture", each) for each in (fact, loaded)),
            # Without run_single_threaded, a waiting Python operator can hold the GIL in one thread while
            # another thread waits for its runner (torch 2.13). Only a lock is right for every model.
            fix=Fix(
                text="hold one lock, shared by all threads (`lock = threading.Lock()`), around each call",
                before="model(*inputs)",
                after="with lock:\n    model(*inputs)",
            ),
            harmful=case.failed,
        )


def _overlapping(capture: Captured, load: CapturedLoad) -> tuple[CapturedCall, CapturedCall] | None:
    """Two calls of one loaded model at the same time in different threads, or None."""
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


MOST_LINES = 3


def detect_changed_input(case: DiagnosisState) -> Iterator[Suspect]:
    """An input that the call changed, if a check failed although package and exported program agree."""
    root = case.script_run.root if case.script_run is not None else None
    changed = written_inputs(case.view).difference(case.plain_run.left_alone if case.plain_run else [])
    checked = root is not None and "result_check" in root.family.tags
    if case.view is None or not changed or not checked or not case.equals_eager:
        return
    item = case.compiled_inputs[min(changed)]
    # The model lines that write in place, if they are few, and the lines of the writing launch.
    own = case.lines_in_place
    buffer = case.view.wrapper.buffers.get(item.name)
    writers = case.view.writers.get(buffer.storage, []) if buffer is not None else []
    of_launch = next((lines for number in writers if (lines := launch_lines(number, case))), [])
    lines = list(dict.fromkeys([*(own if len(own) <= MOST_LINES else []), *of_launch]))[:MOST_LINES]
    fact = f"{item.label} is modified in place by the call, as by the model"
    agree = "package and exported program agree on the inputs of the call"
    yield Suspect(
        category="wrong_output",
        guilty=input_component(item, [*lines, *case.call_locations], "changed by the call"),
        summary=f"The package matches its exported program, but {fact}. A reference computed from the same "
        "tensor after the call therefore sees different values.",
        level=CausalLevel.FAULT_SITE,
        evidence=(seen("inspect_package", fact), seen("interpret", agree)),
        fix=Fix(text="pass each of them a separate copy, or let the model work on a copy", after="x.clone()"),
        observed=False,
    )


def updated_in_a_copy(case: DiagnosisState) -> dict[int, int]:
    """Map inputs that the package may copy, updating only the copy, to the alignment that avoids the copy.

    For a captured call, these are its misaligned inputs. For a call from a file, addresses are unknown.
    """
    if case.view is None:
        return {}
    bytes_of = copied_when_misaligned(case.view.wrapper.text)
    written = written_inputs(case.view) if bytes_of else ()
    inputs = case.view.wrapper.inputs().items()
    found = {place: bytes_of[b.name] for place, b in inputs if b.name in bytes_of and place in written}
    if case.suspect_call is None:
        return found
    leaves = dict(enumerate(case.suspect_call.leaves))
    return {n: size for n, size in found.items() if n in leaves and 0 < (leaves[n].alignment or 0) < size}


def detect_lost_update(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect each misaligned input that the call should update but leaves unchanged.

    Only for calls that return. If the program failed, its own check must have failed.
    """
    plain, hooked = case.plain_run, case.captured
    if plain is None or plain.failure not in ("none", "differs"):
        return
    own_check = bool(hooked.assertions or case.own_check) and hooked.failing is None
    if case.failed and not own_check:
        return
    call, own = case.suspect_call, case.lines_in_place
    for place, size in updated_in_a_copy(case).items():
        if place not in plain.left_alone:
            continue
        item = case.compiled_inputs[place]
        offset = call.leaves[place].storage_offset if call is not None and place < len(call.leaves) else 0
        where = f"an address not divisible by {size} bytes" + (f" (offset {offset})" if offset else "")
        copied = f"run_impl copies {item.label} if its address is not a multiple of {size} bytes"
        left = f"the call leaves input {place}, at such an address, unchanged"
        aligned = f"the call with an aligned copy of input {place}"
        yield Suspect(
            category="input_mismatch",
            guilty=input_component(item, [*own[:1], *case.call_locations], f"at {where}"),
            summary=f"The model updates {item.label} in place, but its memory begins at {where}: the package "
            "copies such an input and updates the copy, so the caller's tensor stays unchanged.",
            level=CausalLevel.CALL,
            evidence=(seen("inspect_package", f"{copied}, and writes the copy"), seen("run", left)),
            fix=Fix(
                text=f"pass a tensor that begins at a multiple of {size} bytes, then copy it back",
                after=f"state = x.clone(); outputs = model(…, state, …); x.copy_(state)  # x: input {place}",
            ),
            intervention=Intervention(f"align {place}", Kind.INPUT, aligned, (Change("align", input=place),)),
            harmful=not case.ended_well,
        )


_Stuck = partial(Suspect, category="hang", level=CausalLevel.STATE)
OTHER_LOCK = "a read-write lock"  # a lock of the host, as `awaited` names it
UNUSUAL = 100  # a call that takes this many times its usual duration is unusual
MOST_TOLD = 6
_ORDER = (
    "Threads of the process wait for each other, and none can continue.",
    "take the locks in the same order in all threads, or release one before waiting for the other",
)
_OWN_LOCK = (
    "A thread waits for a lock that it holds itself, and cannot continue.",
    "do not lock again what the thread or its caller has locked, or use a recursive mutex",
)
# Summary and advice for threads that wait for each other, by what they wait for.
_CYCLES: dict[frozenset[str], tuple[str, str]] = {
    frozenset({"the GIL", "a free instance of the model"}): GIL_AND_RUNNER,
    frozenset({"a free instance of the model"}): (
        "A nested call of the package waits for a free runner, and every runner waits for a nested call.",
        "load a package that its own operators call with more runners (num_runners) than such calls need",
    ),
}


def detect_stuck_process(case: DiagnosisState) -> Iterator[Suspect]:
    """Threads that wait for each other; else a thread that made no progress; else the finding of no hang."""
    process = case.process
    if process is None:
        return
    if process.deadlocked:
        yield _deadlock(process.deadlocked, process, case)
    elif process.blocking:
        yield _blocking(process.blocking[0], process, case)
    else:
        yield _moving(process)


def _deadlock(stuck: Sequence[ThreadSeen], process: ProcessSeen, case: DiagnosisState) -> Suspect:
    # Threads for which others wait form the cycle.
    needed = {holder for each in stuck for holder in each.held_by}
    circle = [each for each in stuck if each.thread in needed]
    kinds = frozenset(each.waits_for for each in stuck)
    summary, action = _CYCLES.get(kinds, _OWN_LOCK if len(circle) == 1 else _ORDER)
    shown = circle[:4]
    told = "; ".join(_told(each) for each in shown)
    if rest := len(stuck) - len(shown):
        told += f"; {counted(rest, 'other thread')} {'waits' if rest == 1 else 'wait'} for these"
    lines = [line for each in shown for line in each.model]
    return _Stuck(
        guilty=component("call", f"{counted(len(stuck), 'thread')} that cannot continue", lines),
        summary=f"{summary} {capitalized(told)}.",
        evidence=_evidence(process),
        crashing=next((party for each in stuck if (party := _party(each, case)) is not None), None),
        fix=Fix(text=action),
    )


def _blocking(thread: ThreadSeen, process: ProcessSeen, case: DiagnosisState) -> Suspect:
    flight = process.flights.get(thread.thread)
    long = flight is not None and (
        flight.seconds >= HANGING_S
        or (flight.usual_s is not None and flight.seconds >= max(BETWEEN_S, UNUSUAL * flight.usual_s))
    )
    waiting = _waiters(thread, process)
    op = operator_of(thread.launch, case) if thread.launch is not None else ""
    told = _told(thread)
    summary = f"{capitalized(told)}{_since(thread, process)}.{waiting}"
    action, place = end_of(op), component("call", "call of the package", thread.model)
    if thread in process.outside:
        place = component("script", f"thread {thread.thread}, {OUTSIDE}", thread.model)
    if thread.waits_for.endswith("OpenMP team") and not process.pool:
        summary, action = FORKED
    elif thread.waits_for == OTHER_LOCK:
        summary += " No thread holds it for writing, so threads that hold it for reading keep it."
        action = "release a lock held for reading before the same thread locks it for writing"
    elif thread.waits_for == FUTURE[1]:
        action = "do not wait in a task for tasks of the same pool: give those a pool of their own"
    elif thread.waits_for == CONDITION[1]:
        action = "wait with a predicate, set under the same lock: a notify that comes before the wait is lost"
    elif thread in process.outside and "(the GIL)" in waiting:
        action = "release the GIL around what waits (Py_BEGIN_ALLOW_THREADS; with ctypes: CDLL, not PyDLL)"
    elif thread in process.outside:
        action = "release the lock before waiting, or find out why the thread that holds it does not continue"
    return _Stuck(
        guilty=_party(thread, case) or place,
        summary=summary,
        evidence=_evidence(process),
        fix=fix_if(action),
        weak=thread.computes and not long,
        settle="a recording shows how long a call usually takes; look again, or diagnose that call",
    )


def _waiters(thread: ThreadSeen, process: ProcessSeen) -> str:
    """Say who waits for a thread, and for what, and how many threads of the package wait for these others."""
    waiting = [each for each in process.everyone if thread.thread in each.held_by]
    if not waiting:
        return ""
    outside = {each.thread for each in waiting if each in process.outside}
    what = listed(sorted({each.waits_for for each in waiting}), "and")
    told = counted(len(waiting), "other thread") + ("" if outside else " of the package")
    told += f" {'waits' if len(waiting) == 1 else 'wait'} for it ({what})"
    kept = [each for each in process.threads if outside & {*each.held_by}]
    if kept:
        numbers = listed([f"thread {number}" for number in sorted(outside)], "and")
        told += f", and {counted(len(kept), 'thread')} of the package for {numbers}"
    return f" {told}."


def _moving(process: ProcessSeen) -> Suspect:
    """A weak suspect: no thread stayed in the package, so nothing shows a hang."""
    served = f"{counted(process.served, 'call')} ended" if process.served else "its threads moved"
    summary = f"The process serves calls: {served} while the process was observed ({BETWEEN_S:g} s)."
    if not process.threads:
        summary = "No thread of the process is in the package. The process waits or computes elsewhere."
        where = Counter(_told(each).partition(" is ")[2] for each in process.outside).most_common(1)
        if where and where[0][1] > 1:
            summary += f" Of its threads, {where[0][1]} are in the same place: {where[0][0]}."
    return _Stuck(
        guilty=component("script", "outside of the package", []),
        summary=summary,
        evidence=_evidence(process),
        weak=True,
        settle="look again while a call does not return",
    )


def _told(thread: ThreadSeen) -> str:
    outside = thread.state.startswith(OUTSIDE)
    at = (
        f", at {PurePath(line.file).name}:{line.line}"
        if outside and (line := next(iter(thread.model), None))
        else ""
    )
    state = thread.state.replace(OUTSIDE, f"{OUTSIDE}{at}", 1)
    return f"thread {thread.thread} {'is ' if outside or thread.launch is not None else ''}{state}"


def _party(thread: ThreadSeen, case: DiagnosisState) -> Component | None:
    return launch_component(thread.launch, thread.kernel, case) if thread.launch is not None else None


def _since(thread: ThreadSeen, process: ProcessSeen) -> str:
    """The inputs of the thread's call, and how long ago it began, if known."""
    flight, inputs = process.flights.get(thread.thread), process.inputs.get(thread.thread, "")
    given = f" (inputs {inputs})" if inputs else ""
    if flight is None:
        return f"{given}, as long as the process was observed ({BETWEEN_S:g} s)"
    usual = f"; earlier calls took {flight.usual_s * 1e3:.3g} ms" if flight.usual_s is not None else ""
    return f"{given}; its call began {flight.seconds:.1f} s ago{usual}"


def _evidence(process: ProcessSeen) -> tuple[Evidence, ...]:
    facts = [_told(each) for each in process.everyone[:MOST_TOLD]]
    if len(process.everyone) > MOST_TOLD:
        facts = list(states_in_words(process.everyone))[:MOST_TOLD]
    facts.append(f"{counted(process.others - len(process.outside), 'thread')} elsewhere")
    if process.served is not None:
        facts.append(
            f"{counted(process.served, 'call')} ended while the process was observed ({BETWEEN_S:g} s)"
        )
    return tuple(seen("look_at_process", fact) for fact in facts)
