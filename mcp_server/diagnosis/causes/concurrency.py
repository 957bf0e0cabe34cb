"""Calls, threads and streams that overlap: races, and memory that is freed, moved or reused too early."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from mcp_server.diagnosis.causes.common import agreement, name_of, seen
from mcp_server.diagnosis.causes.in_place_inputs import written_inputs
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import Captured, CapturedCall, CapturedLoad, CapturedReplay, CrossStreamFree
from mcp_server.model import Component, Fix, ModelLocation

# What a call that is made again by itself is free of.
_Race = partial(Suspect, category="concurrency", level=CausalLevel.STATE, only_in_program=True)


def detect_concurrency(case: DiagnosisState) -> Iterator[Suspect]:
    """Threads inside a model that was loaded for one; constants whose memory moved."""
    if case.capture is None:
        return
    for load in case.capture.loads:
        pair = _overlapping(case.capture, load) if load.options.get("run_single_threaded") else None
        if pair is not None:
            yield _unsynchronised(load, *pair, case)
    yield from _moved(case.capture, case)


def _overlapping(capture: Captured, load: CapturedLoad) -> tuple[CapturedCall, CapturedCall] | None:
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
    load: CapturedLoad, first: CapturedCall, second: CapturedCall, case: DiagnosisState
) -> Suspect:
    fact = f"threads {first.thread_name} and {second.thread_name} were inside the model at the same time"
    return _Race(
        guilty=Component(
            kind="call",
            name="run_single_threaded=True, called from several threads",
            model_locations=[*load.stack[:1], *first.stack[:1]],
        ),
        summary="The package was loaded with run_single_threaded=True, which does no synchronisation, "
        "and several threads called it at the same time.",
        evidence=(
            seen("capture", fact),
            seen("capture", "the model was loaded with run_single_threaded=True"),
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


def _moved(capture: Captured, case: DiagnosisState) -> Iterator[Suspect]:
    """User-managed constants whose memory was freed or moved between their update and a call."""
    call = next((c for c in capture.calls if c.moved), None)
    if call is None:
        return
    names = ", ".join(call.moved[:4])
    update = next((u for u in capture.updates if set(call.moved) <= set(u.constants)), None)
    yield _Race(
        guilty=Component(
            kind="constant",
            name=call.moved[0],
            model_locations=[*(update.stack[:1] if update else []), *call.stack[:1]],
        ),
        summary=f"The memory of user-managed constant {names} was freed or moved after load_constants: the "
        "package keeps its old address and reads whatever is there now.",
        evidence=(seen("capture", f"at the call, {names} is no longer where load_constants was given it"),),
        fix=Fix(
            action="keep the tensors given with user_managed=True where they are, or call load_constants "
            "again after they moved"
        ),
        harmful=case.failed,
    )


def _label(place: int, case: DiagnosisState) -> str:
    inputs = case.package.inputs if case.package is not None else ()
    return name_of(inputs[place]) if place < len(inputs) else f"input {place}"


def _stream_label(place: int, case: DiagnosisState) -> str:
    inputs = case.package.inputs if case.package is not None else ()
    return inputs[place].label if place < len(inputs) else f"inputs[{place}]"


def _input(place: int, name: str, lines: list[ModelLocation]) -> Component:
    return Component(kind="input", name=name, input_index=place, model_locations=lines)


def detect_rewritten(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for the first call of a failed program whose input was written while it ran."""
    calls = case.capture.calls if case.capture is not None else []
    own = written_inputs(case)
    for call in calls:
        changed = [place for place in call.rewritten if place not in own]
        if changed and case.failed:
            yield _rewritten(call, changed[0], case)
            return
    again = [call for call in calls if call.again and call.thread_name != "MainThread"]
    minds = case.failed and not case.ended_well and all(call.outcome == "ok" for call in calls)
    plain = case.runs.get("plain")
    right_alone = case.equals_eager is not False and (
        plain is None or plain.failure in ("none", "differs")
    )  # for the content that it was given, as far as is known
    if again and minds and right_alone:
        yield _same_content(again, case)


def _rewritten(call: CapturedCall, place: int, case: DiagnosisState) -> Suspect:
    label = _label(place, case)
    fact = f"in-place operations on input {place} between the begin and the end of a call in thread"
    return _Race(
        guilty=_input(place, label, call.stack[:2]),
        summary=f"Input {place} ({label}) was written while the call that reads it ran, and not by the "
        "package: another thread changes the tensor.",
        evidence=(seen("capture", f"{fact} {call.thread_name}"),),
        fix=Fix(
            action="give the call a tensor that nobody else writes",
            before=call.stack[0].code if call.stack else None,
            after="pass tensor.clone(), or hold a lock around the call and the writes",
        ),
    )


def _same_content(again: list[CapturedCall], case: DiagnosisState) -> Suspect:
    """Calls that a worker thread made with one and the same content, in a program that minds its results."""
    call, place = again[-1], again[-1].again[0]
    label = _label(place, case)
    fact = (
        f"{len(again)} calls in thread {call.thread_name} were given the very tensor of the call before, "
        "with nothing written to it in between"
    )
    return _Race(
        guilty=_input(place, label, call.stack[:2]),
        summary=f"Input {place} ({label}): {fact}. What was put there for each may have been "
        "written over before the first one ran.",
        evidence=(seen("capture", fact),),
        fix=Fix(
            action="hand each call a tensor of its own, or wait for a call before its input is written anew"
        ),
        observed=False,
    )


def detect_aliased(case: DiagnosisState) -> Iterator[Suspect]:
    """An output that is a view of an input, where a check of the program failed and every call came back."""
    capture = case.capture
    if capture is None or not (capture.assertions or case.own_check):
        return
    later = next((call for call in capture.calls if call.overwritten), None)
    if later is None or any(call.outcome != "ok" for call in capture.calls):
        return
    number, output, place = later.overwritten[0]
    first = next((c for c in capture.calls if (c.pid, c.number) == (later.pid, number)), later)
    checks = [line for check in capture.assertions[-1:] for line in check.stack[:1]]
    fact = (
        f"output {output} of a call is a view of its input {place}; by two calls later the program had "
        "written into that input, and still kept the output"
    )
    yield _Race(
        guilty=_input(place, f"input {place}", [*first.stack[:2], *checks]).model_copy(
            update={"value": f"output {output} is a view of it"}
        ),
        summary=f"Output {output} of the package shares the memory of input {place}: the program wrote new "
        "values into that input while it kept the output, which changed with it.",
        evidence=(seen("capture", fact), *agreement(case)),
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
            yield _raced(call, late[0], case)
            break
    for replay in case.capture.replays:
        yield _graph_lost_input(replay, case)
    for freed in case.capture.loans[:1]:
        yield _freed_early(freed, case)


def _raced(call: CapturedCall, place: int, case: DiagnosisState) -> Suspect:
    label = _stream_label(place, case)
    fact = (
        f"input {place}, copied in the order of the calling stream, differs from what it held "
        "once all streams were done; the package does not write it"
    )
    return _Race(
        guilty=_input(place, label, call.stack[:2]),
        summary=f"Input {place} ({label}) was still being written by another stream when the package read "
        "it.",
        evidence=(seen("capture", fact),),
        fix=Fix(
            action="make the calling stream wait for the stream that fills the input",
            before=call.stack[0].code if call.stack else None,
            after="torch.cuda.current_stream().wait_stream(other_stream)",
        ),
        harmful=case.failed,
    )


def _graph_lost_input(replay: CapturedReplay, case: DiagnosisState) -> Suspect:
    label = _stream_label(replay.input, case)
    call = _call_of(replay, case)
    fact = f"at the replay, no tensor holds the memory of input {replay.input} at the capture"
    return _Race(
        guilty=_input(replay.input, label, [*replay.stack[:2], *(call.stack[:1] if call else [])]),
        summary=f"A CUDA graph was replayed after the memory of input {replay.input} ({label}) of its call "
        "had been freed: the graph reads the old address, not the tensor that replaced it.",
        evidence=(seen("capture", fact),),
        fix=Fix(
            action="keep the tensor that was captured, and copy new values into it before each replay",
            before="static_input = request",
            after="static_input.copy_(request)",
        ),
        harmful=case.failed,
    )


def _freed_early(freed: CrossStreamFree, case: DiagnosisState) -> Suspect:
    """Proven only where the program fails by itself, and not under the hook, which waits for each call."""
    label = _stream_label(freed.input, case)
    call = _call_of(freed, case)
    fact = (
        f"the memory of input {freed.input} was freed, and something was allocated, before the stream that "
        "owns it waited for the stream of the call; record_stream was not called"
    )
    alone = "the program fails by itself and ends well where each call is waited for"
    return _Race(
        guilty=_input(freed.input, label, call.stack[:2] if call else []),
        summary=f"Input {freed.input} ({label}) was freed while the package, on another stream, could still "
        "read it: the allocator reuses its memory for the next tensor at once.",
        evidence=(
            seen("capture", fact),
            *((seen("run_alone", alone),) if case.fails_only_alone else ()),
        ),
        fix=Fix(
            action="tell the allocator which stream uses the input, or keep it until that stream is done",
            before=call.stack[0].code if call and call.stack else None,
            after="x.record_stream(torch.cuda.current_stream())",
        ),
        harmful=case.failed,
        observed=case.fails_only_alone,
    )


def _call_of(event: CrossStreamFree | CapturedReplay, case: DiagnosisState) -> CapturedCall | None:
    calls = case.capture.calls if case.capture is not None else []
    return next((c for c in calls if (c.pid, c.number) == (event.pid, event.call)), None)
