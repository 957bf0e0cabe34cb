"""Calls, threads and streams that overlap: races, deadlocks, and memory that is reused too early."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mcp_server.diagnosis.causes.hang import lines_inside, operator_inside
from mcp_server.diagnosis.causes.in_place_inputs import written_inputs
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import Captured, CapturedCall, CapturedLoad, CapturedReplay, CrossStreamFree
from mcp_server.logs.facts import ThreadStack
from mcp_server.model import Component, Evidence, Fix


def detect_concurrency(case: DiagnosisState) -> Iterator[Suspect]:
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


def _unsynchronised(
    load: CapturedLoad, pair: tuple[CapturedCall, CapturedCall], case: DiagnosisState
) -> Suspect:
    fact = f"threads {pair[0].thread_name} and {pair[1].thread_name} were inside the model at the same time"
    return Suspect(
        category="concurrency",
        guilty=Component(
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


def _waiting(case: DiagnosisState, stacks: Sequence[ThreadStack]) -> Iterator[Suspect]:
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
        guilty=Component(
            kind="op" if op and not several else "call",
            name=_name(op, len(threads)),
            model_locations=[*(() if forked else place), *at.stack[:2]],
        ),
        summary=_FORKED if forked else _hang_summary(several),
        level=CausalLevel.STATE,
        evidence=tuple(
            Evidence(step="capture", fact=f"thread {call.thread_name} entered a call and did not return")
            for call in inside[:4]
        ),
        fix=Fix(action=_UNFORKED if forked else _hang_action(several, op)),
        observed=several,
    )


# The pool of OpenMP is not made anew after fork() (libgomp, and torch's own pool, on Linux).
_FORKED = (
    "A call did not return in a process that was forked after the package was loaded: the compute threads "
    "of the parent do not exist in the child, and the call waits for them."
)
_UNFORKED = "start the workers with 'spawn', or load and call the package only in the children"


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


def _hanging_call(case: DiagnosisState) -> Iterator[Suspect]:
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
        guilty=Component(
            kind="op" if op else "call", name=op or "call of the package", model_locations=places
        ),
        summary=f"The call does not return within its time limit{': it is inside ' + op if op else ''}.",
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
            "Several threads are inside calls of one package and none returns: a call holds the GIL while "
            "it waits for a free runner, and the thread that has the runner waits for the GIL."
        )
    return "A call of the package did not return within the time limit."


def _moved(case: DiagnosisState) -> Iterator[Suspect]:
    """User-managed constants whose memory was freed or moved between their update and a call."""
    assert case.capture is not None
    call = next((c for c in case.capture.calls if c.moved), None)
    if call is None:
        return
    names = ", ".join(call.moved[:4])
    update = next((u for u in case.capture.updates if set(call.moved) <= set(u.constants)), None)
    yield Suspect(
        category="concurrency",
        guilty=Component(
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


def detect_rewritten(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for the first such call of a program that failed."""
    calls = case.capture.calls if case.capture is not None else []
    own = written_inputs(case)
    for call in calls:
        changed = [place for place in call.rewritten if place not in own]
        if changed and case.failed:
            yield _rewritten_suspect(call, changed[0], case)
            return
    yield from _overtaken(calls, case)


def _overtaken(calls: list[CapturedCall], case: DiagnosisState) -> Iterator[Suspect]:
    """Calls that a worker thread made with one and the same content, in a program that minds its results."""
    again = [call for call in calls if call.again and call.thread_name != "MainThread"]
    minds = case.failed and not case.ended_well and all(call.outcome == "ok" for call in calls)
    if again and minds and _right_by_itself(case):
        yield _same_content(again, case)


def _right_by_itself(case: DiagnosisState) -> bool:
    """Whether the call, made again, is right for the content that it was given, as far as is known."""
    plain = case.runs.get("plain")
    return case.equals_eager is not False and (plain is None or plain.failure in ("none", "differs"))


def _same_content(again: list[CapturedCall], case: DiagnosisState) -> Suspect:
    call, place = again[-1], again[-1].again[0]
    fact = (
        f"{len(again)} calls in thread {call.thread_name} were given the very tensor of the call before, "
        "with nothing written to it in between"
    )
    return Suspect(
        category="concurrency",
        guilty=Component(
            kind="input", name=_label(place, case), input_index=place, model_locations=call.stack[:2]
        ),
        summary=f"Input {place} ({_label(place, case)}): {fact}. What was put there for each may have been "
        "written over before the first one ran.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(
            action="hand each call a tensor of its own, or wait for a call before its input is written anew"
        ),
        observed=False,
    )


def _label(place: int, case: DiagnosisState) -> str:
    inputs = case.package.inputs if case.package is not None else ()
    return inputs[place].path or inputs[place].name if place < len(inputs) else f"input {place}"


def _rewritten_suspect(call: CapturedCall, place: int, case: DiagnosisState) -> Suspect:
    label = _label(place, case)
    return Suspect(
        category="concurrency",
        guilty=Component(kind="input", name=label, input_index=place, model_locations=call.stack[:2]),
        summary=f"Input {place} ({label}) was written while the call that reads it ran, and not by the "
        "package: another thread changes the tensor.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(
                step="capture",
                fact=f"in-place operations on input {place} between the begin and the end of a call in "
                f"thread {call.thread_name}",
            ),
        ),
        fix=Fix(
            action="give the call a tensor that nobody else writes",
            before=call.stack[0].code if call.stack else None,
            after="pass tensor.clone(), or hold a lock around the call and the writes",
        ),
    )


def detect_aliased(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where a check of the program failed and every call came back."""
    seen = case.capture
    if seen is None or not (seen.assertions or case.own_check):
        return
    if any(call.outcome != "ok" for call in seen.calls):
        return
    found = next((call for call in seen.calls if call.overwritten), None)
    if found is not None:
        yield _aliased_suspect(found, case)


def _aliased_suspect(later: CapturedCall, case: DiagnosisState) -> Suspect:
    assert case.capture is not None
    number, output, place = later.overwritten[0]
    first = next((c for c in case.capture.calls if (c.pid, c.number) == (later.pid, number)), later)
    checks = [check.stack[:1] for check in case.capture.assertions[-1:]]
    agrees = bool(case.equals_eager)
    fact = (
        f"output {output} of a call is a view of its input {place}; by two calls later the program had "
        "written into that input, and still kept the output"
    )
    return Suspect(
        category="concurrency",
        guilty=Component(
            kind="input",
            name=f"input {place}",
            input_index=place,
            value=f"output {output} is a view of it",
            model_locations=[*first.stack[:2], *(line for lines in checks for line in lines)],
        ),
        summary=f"Output {output} of the package shares the memory of input {place}: the program wrote new "
        "values into that input while it kept the output, which changed with it.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(step="capture", fact=fact),
            *((Evidence(step="interpret", fact="package and exported program agree"),) if agrees else ()),
        ),
        fix=Fix(
            action="copy the output before its input is written anew, or give each call a tensor of its own",
            after=f"outputs[{output}].clone()",
        ),
        harmful=case.failed,
        observed=False,
    )


def detect_streams(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for the first call that raced with a stream, one for each input that a graph lost."""
    if case.capture is None:
        return
    written = written_inputs(case)
    for call in case.capture.calls:
        late = [place for place in call.raced if place not in written]
        if late:
            yield _raced(call, late, case)
            break
    for replay in case.capture.replays:
        yield _lost(replay, case)
    for loan in case.capture.loans[:1]:
        yield _let_go(loan, case)


def _raced(call: CapturedCall, late: list[int], case: DiagnosisState) -> Suspect:
    label = _stream_label(late[0], case)
    return Suspect(
        category="concurrency",
        guilty=Component(kind="input", name=label, input_index=late[0], model_locations=call.stack[:2]),
        summary=f"Input {late[0]} ({label}) was still being written by another stream when the package read "
        "it.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(
                step="capture",
                fact=f"input {late[0]}, copied in the order of the calling stream, differs from what it held "
                "once all streams were done; the package does not write it",
            ),
        ),
        fix=Fix(
            action="make the calling stream wait for the stream that fills the input",
            before=call.stack[0].code if call.stack else None,
            after="torch.cuda.current_stream().wait_stream(other_stream)",
        ),
        harmful=case.failed,
    )


def _lost(replay: CapturedReplay, case: DiagnosisState) -> Suspect:
    label = _stream_label(replay.input, case)
    call = _call_of(replay, case)
    return Suspect(
        category="concurrency",
        guilty=Component(
            kind="input",
            name=label,
            input_index=replay.input,
            model_locations=[*replay.stack[:2], *(call.stack[:1] if call else [])],
        ),
        summary=f"A CUDA graph was replayed after the memory of input {replay.input} ({label}) of its call "
        "had been freed: the graph reads the old address, not the tensor that replaced it.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(
                step="capture",
                fact=f"at the replay, no tensor holds the memory of input {replay.input} at the capture",
            ),
        ),
        fix=Fix(
            action="keep the tensor that was captured, and copy new values into it before each replay",
            before="static_input = request",
            after="static_input.copy_(request)",
        ),
        harmful=case.failed,
    )


def _let_go(loan: CrossStreamFree, case: DiagnosisState) -> Suspect:
    """Proven only where the program fails by itself, and not under the hook, which waits for each call."""
    label = _stream_label(loan.input, case)
    call = _call_of(loan, case)
    waits = case.fails_only_alone
    fact = (
        f"the memory of input {loan.input} was freed, and something was allocated, before the stream that "
        "owns it waited for the stream of the call; record_stream was not called"
    )
    alone = Evidence(
        step="run_alone", fact="the program fails by itself and ends well where each call is waited for"
    )
    return Suspect(
        category="concurrency",
        guilty=Component(
            kind="input", name=label, input_index=loan.input, model_locations=call.stack[:2] if call else []
        ),
        summary=f"Input {loan.input} ({label}) was freed while the package, on another stream, could still "
        "read it: the allocator reuses its memory for the next tensor at once.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(Evidence(step="capture", fact=fact), *((alone,) if waits else ())),
        fix=Fix(
            action="tell the allocator which stream uses the input, or keep it until that stream is done",
            before=call.stack[0].code if call and call.stack else None,
            after="x.record_stream(torch.cuda.current_stream())",
        ),
        harmful=case.failed,
        observed=waits,
    )


def _call_of(event: CrossStreamFree | CapturedReplay, case: DiagnosisState) -> CapturedCall | None:
    assert case.capture is not None
    return next((c for c in case.capture.calls if (c.pid, c.number) == (event.pid, event.call)), None)


def _stream_label(place: int, case: DiagnosisState) -> str:
    inputs = case.package.inputs if case.package is not None else ()
    return inputs[place].label if place < len(inputs) else f"inputs[{place}]"
