"""Memory that is written, freed or shared while a call uses it: by threads, streams, or the call itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from mcp_server.diagnosis.components import (
    agreement,
    check_failed,
    component,
    confirming,
    input_component,
    launch_lines,
    name_of,
    seen,
    written_inputs,
    written_storages,
)
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import Captured, CapturedCall, CapturedLoad, FreedInput
from mcp_server.model import Fix, ModelLocation
from mcp_server.package.signature import copied_when_misaligned
from mcp_server.plurals import counted
from mcp_server.worker.protocol import Change

# Conditions that a call repeated on its own is free of.
_Race = partial(Suspect, category="concurrency", level=CausalLevel.STATE, only_in_program=True)


def detect_concurrency(case: DiagnosisState) -> Iterator[Suspect]:
    """Threads inside a model that was loaded for one; constants whose memory moved."""
    hooked = case.captured
    for load in hooked.loads:
        pair = _overlapping(hooked, load) if load.options.get("run_single_threaded") else None
        if pair is None:
            continue
        first, second = pair
        fact = f"threads {first.thread_name} and {second.thread_name} were inside the model at the same time"
        loaded = "the model was loaded with run_single_threaded=True"
        lines = [*load.stack[:1], *first.stack[:1]]
        yield _Race(
            guilty=component("call", "run_single_threaded=True, called from several threads", lines),
            summary="The package was loaded with run_single_threaded=True, which does no synchronisation, "
            "and several threads called it at the same time.",
            evidence=tuple(seen("capture", each) for each in (fact, loaded)),
            # Without run_single_threaded a Python operator that waits can hold the GIL in one thread while
            # another one waits for its runner (torch 2.13): only a lock is right for every model.
            fix=Fix(
                text="let one thread at a time call it: hold a lock around the call",
                before="model(*inputs)",
                after="with lock:\n    model(*inputs)",
            ),
            harmful=case.failed,
        )
    # User-managed constants whose memory was freed or moved between their update and a call.
    for call in [c for c in hooked.calls if c.moved][:1]:
        names = ", ".join(call.moved[:4])
        update = next((u for u in hooked.updates if set(call.moved) <= set(u.constants)), None)
        lines = [*(update.stack[:1] if update else []), *call.stack[:1]]
        fact = f"at the call, {names} is no longer where load_constants was given it"
        yield _Race(
            guilty=component("constant", call.moved[0], lines),
            summary=f"The memory of user-managed constant {names} was freed or moved after load_constants: "
            "the package keeps its old address and reads whatever is there now.",
            evidence=(seen("capture", fact),),
            fix=Fix(text="keep these tensors where they are, or call load_constants again after a move"),
            harmful=case.failed,
        )


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


@dataclass(frozen=True)
class _Overlap:
    """How an input's memory changed during a call. Without `before` the fix replaces the line of the call."""

    summary: str
    fact: str
    action: str
    before: str | None = None
    after: str | None = None
    observed: bool = True


_REWRITTEN = _Overlap(
    summary="Input {place} ({name}) was written while the call that reads it ran, and not by the package: "
    "another thread changes the tensor.",
    fact="in-place operations on input {place} between the begin and the end of a call in thread {thread}",
    action="give the call a tensor that nobody else writes",
    after="pass tensor.clone(), or hold a lock around the call and the writes",
)
_RACED = _Overlap(
    summary="Input {place} ({name}) was still being written by another stream when the package read it.",
    fact="input {place}, copied in the order of the calling stream, differs from what it held once all "
    "streams were done; the package does not write it",
    action="make the calling stream wait for the stream that fills the input",
    after="torch.cuda.current_stream().wait_stream(other_stream)",
)
_LOST_BY_GRAPH = _Overlap(
    summary="A CUDA graph was replayed after the memory of input {place} ({name}) of its call had been "
    "freed: the graph reads the old address, not the tensor that replaced it.",
    fact="at the replay, no tensor holds the memory of input {place} at the capture",
    action="keep the tensor that was captured, and copy new values into it before each replay",
    before="static_input = request",
    after="static_input.copy_(request)",
)
_FREED_EARLY = _Overlap(
    summary="Input {place} ({name}) was freed while the package, on another stream, could still read it: the "
    "allocator reuses its memory for the next tensor at once.",
    fact="the memory of input {place} was freed, and something was allocated, before the stream that owns it "
    "waited for the stream of the call; record_stream was not called",
    action="tell the allocator which stream uses the input, or keep it until that stream is done",
    after="x.record_stream(torch.cuda.current_stream())",
)


def _overlap(
    kind: _Overlap, place: int, lines: list[ModelLocation], case: DiagnosisState, **words: object
) -> Suspect:
    """The input at `place`, whose memory changed in this way under the call at `lines`."""
    known = place < len(case.compiled_inputs)
    name = name_of(case.compiled_inputs[place]) if known else f"inputs[{place}]"
    fact = kind.fact.format(place=place, **words)
    before = kind.before or (lines[0].code if kind.after and lines else None)
    return _Race(
        guilty=component("input", name, lines, index=place),
        summary=kind.summary.format(place=place, name=name, fact=fact),
        evidence=(seen("capture", fact),),
        fix=Fix(text=kind.action, before=before, after=kind.after),
        harmful=case.failed,
        observed=kind.observed,
    )


def detect_rewritten(case: DiagnosisState) -> Iterator[Suspect]:
    """An input that was written under a call, and not by the package."""
    own = written_inputs(case)
    for call in case.calls if case.failed else ():
        changed = [place for place in call.rewritten if place not in own]
        if changed:
            yield _overlap(_REWRITTEN, changed[0], call.stack[:2], case, thread=call.thread_name)
            return


def detect_streams(case: DiagnosisState) -> Iterator[Suspect]:
    """The first call that raced with a stream, inputs that a graph lost, and one that was freed early."""
    written = written_inputs(case)
    for call in case.calls:
        late = [place for place in call.raced if place not in written]
        if late:
            yield _overlap(_RACED, late[0], call.stack[:2], case)
            break
    for replay in case.captured.replays:
        lines = [*replay.stack[:2], *_lines_of_call(replay, case)[:1]]
        yield _overlap(_LOST_BY_GRAPH, replay.input, lines, case)
    for freed in case.captured.cross_stream_frees[:1]:
        found = _overlap(_FREED_EARLY, freed.input, _lines_of_call(freed, case)[:2], case)
        # Proven only where the program fails by itself, and not under the hook, which waits for each call.
        alone = "the program fails by itself, and does not when each call is waited for"
        evidence = (*found.evidence, *((seen("run_alone", alone),) if case.fails_only_alone else ()))
        yield replace(found, evidence=evidence, observed=case.fails_only_alone)


def _lines_of_call(event: FreedInput, case: DiagnosisState) -> list[ModelLocation]:
    """The user's lines of the call that an event is about."""
    return next((c.stack for c in case.calls if (c.pid, c.number) == (event.pid, event.call)), [])


def detect_aliased(case: DiagnosisState) -> Iterator[Suspect]:
    """An output that is a view of an input, where a check of the program failed and every call came back."""
    assertions = case.captured.assertions
    later = next((call for call in case.calls if call.overwritten), None)
    if later is None or not (assertions or case.own_check) or any(c.outcome != "ok" for c in case.calls):
        return
    number, output, place = later.overwritten[0]
    first = next((c for c in case.calls if (c.pid, c.number) == (later.pid, number)), later)
    checks = [line for check in assertions[-1:] for line in check.stack[:1]]
    shared = f"output {output} of a call is a view of its input {place}"
    fact = f"{shared}; two calls later the program had written that input, and still kept the output"
    lines, view = [*first.stack[:2], *checks], f"output {output} is a view of it"
    yield _Race(
        guilty=component("input", f"input {place}", lines, value=view, index=place),
        summary=f"Output {output} of the package shares the memory of input {place}: the program wrote new "
        "values into that input while it kept the output, which changed with it.",
        evidence=(seen("capture", fact), *agreement(case)),
        fix=Fix(text="copy the output before its input is written anew", after=f"outputs[{output}].clone()"),
        harmful=case.failed,
        observed=False,
    )


def detect_sharing(case: DiagnosisState) -> Iterator[Suspect]:
    """Inputs of one memory, at least one of them written: export saw them as separate tensors."""
    if case.package is None:
        return
    written, inputs = written_inputs(case), case.package.inputs
    for group in case.sharing:
        changed = [index for index in group if index in written]
        if len(group) < 2 or not changed:
            continue
        items = [inputs[index] for index in group if index < len(inputs)]
        name = name_of(items[0]) if items else "inputs"
        fact = f"inputs {group} have one storage; input {changed[0]} is written"
        yield Suspect(
            category="concurrency",
            guilty=component("input", name, case.call_locations, index=group[0]),
            summary=f"{', '.join(item.label for item in items)} share one memory, and the package writes "
            f"input {changed[0]} in place: it was compiled for separate tensors.",
            level=CausalLevel.CALL,
            evidence=(seen("check_devices", fact),),
            fix=Fix(text="pass a tensor of its own for each input", after="x.clone()"),
            harmful=not case.handled,
            observed=False,
        )


MOST_LINES = 3
# Inputs that the call changes in place are changed again.
TWICE = Intervention(
    "call:twice", Kind.CALL, "the call made twice on the same tensors", options=Options(twice=True)
)


def detect_changed_input(case: DiagnosisState) -> Iterator[Suspect]:
    """An input that the call has changed, where a check failed and package and program agree."""
    root = case.script_run.root if case.script_run is not None else None
    changed = written_inputs(case).difference(case.plain_run.left_alone if case.plain_run else [])
    checked = root is not None and "result_check" in root.family.tags
    if case.view is None or not changed or not checked or not case.equals_eager:
        return
    item = case.compiled_inputs[min(changed)]
    # The model's lines that write in place, where there are few, and those of the launch that writes it.
    own = case.lines_in_place
    buffer = case.view.wrapper.buffers.get(item.name)
    writers = case.view.writers.get(buffer.storage, []) if buffer is not None else []
    of_launch = next((lines for number in writers if (lines := launch_lines(number, case))), [])
    lines = list(dict.fromkeys([*(own if len(own) <= MOST_LINES else []), *of_launch]))[:MOST_LINES]
    fact = f"{item.label} is modified in place by the call, as it is by the model"
    agree = "package and exported program agree on the inputs of the call"
    replayed = case.call is not None and case.call.operation == "replay"
    yield Suspect(
        category="wrong_output",
        guilty=input_component(item, [*lines, *case.call_locations], "changed by the call"),
        summary=f"The package matches its exported program, but {fact}. A reference computed from the same "
        "tensor after the call therefore sees different values.",
        level=CausalLevel.FAULT_SITE,
        evidence=(seen("inspect_package", fact), seen("interpret", agree)),
        fix=Fix(text="pass a copy to each of them, or make the model work on a copy", after="x.clone()"),
        # The trial can only confirm: it cannot reach a reference that was made before the call.
        intervention=confirming(TWICE, case) if replayed else None,
        observed=False,
    )


def updated_in_a_copy(case: DiagnosisState) -> dict[int, int]:
    """Inputs that the package may copy and then update the copy: position, and the alignment that avoids it.

    Of a captured call only misaligned ones; the addresses of a call from a file show only in the run.
    """
    if case.view is None:
        return {}
    bytes_of = copied_when_misaligned(case.view.wrapper.text)
    written = written_inputs(case) if bytes_of else ()
    inputs = case.view.wrapper.inputs().items()
    found = {place: bytes_of[b.name] for place, b in inputs if b.name in bytes_of and place in written}
    if case.suspect_call is None:
        return found
    leaves = dict(enumerate(case.suspect_call.leaves))
    return {n: size for n, size in found.items() if n in leaves and 0 < leaves[n].alignment < size}


def detect_lost_update(case: DiagnosisState) -> Iterator[Suspect]:
    """One suspect for each misaligned input that the call, made again, does not change.

    Only for calls that come back, and if the program failed, over its own check.
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
        where = f"an address that is no multiple of {size} bytes" + (f" (offset {offset})" if offset else "")
        copied = f"run_impl copies {item.label} where its address is no multiple of {size} bytes"
        left = f"the call leaves input {place}, at such an address, as it was"
        aligned = f"the call with an aligned copy of input {place}"
        yield Suspect(
            category="input_mismatch",
            guilty=input_component(item, [*own[:1], *case.call_locations], f"at {where}"),
            summary=f"The model updates {item.label} in place, and was given it at {where}: the package "
            "copies such an input and updates the copy, so that the caller's tensor stays as it was.",
            level=CausalLevel.CALL,
            evidence=(seen("inspect_package", f"{copied}, and writes the copy"), seen("run", left)),
            fix=Fix(
                text=f"give the call a tensor that begins at a multiple of {size} bytes, and copy it back",
                after=f"state = x.clone(); outputs = model(…, state, …); x.copy_(state)  # x: input {place}",
            ),
            intervention=Intervention(f"align {place}", Kind.INPUT, aligned, (Change("align", input=place),)),
            harmful=not case.ended_well,
        )


def detect_shared_state(case: DiagnosisState) -> Iterator[Suspect]:
    """A constant that each call updates, in a package that several threads call in turn."""
    view, load = case.view, case.suspect_load
    wrong_alone = case.failure_of("plain") not in (None, "none", "differs")
    if view is None or load is None or wrong_alone or case.equals_eager is False or not check_failed(case):
        return
    calls = [call for call in case.calls if (call.pid, call.load) == (load.pid, load.number)]
    threads, written = in_turn(calls), written_storages(case)
    states = [b for b in view.wrapper.buffers.values() if b.kind == "constant" and b.storage in written]
    state = next((buffer for buffer in states if view.flow.forward([buffer.name]).outputs), None)
    if not threads or state is None:
        return
    fqn = next((c.fqn for c in view.package.constants if c.name == state.name), state.name)
    writers = view.writers.get(state.storage, [])
    behind = next((found for number in writers if (found := launch_lines(number, case))), [])
    lines = [*calls[-1].stack[:1], *(case.lines_in_place[:2] or behind)]
    shown = ", ".join(threads[:3])
    written_by = f"a call writes constant {fqn}, and its outputs depend on it"
    turns = f"{shown} took turns in {counted(len(calls), 'call')} of one load"
    yield _Race(
        guilty=component("constant", fqn, lines, value=f"one state for {len(threads)} threads"),
        summary=f"Every call of the package updates its constant {fqn} and computes with it, and "
        f"{len(threads)} threads call it in turn ({shown}): each goes on from the state that another left.",
        evidence=(seen("inspect_package", written_by), seen("capture", turns)),
        fix=Fix(text="load the package once for each thread, or make the state an input and an output"),
        harmful=case.failed,
    )


def in_turn(calls: list[CapturedCall]) -> list[str]:
    """The threads from the first that called again after another; a mere successor may continue its state."""
    order = sorted(calls, key=lambda call: call.t)
    turns = [key for key, _ in groupby(order, key=lambda call: (call.thread, call.thread_name))]
    first = next((n for n, turn in enumerate(turns) if turn in turns[n + 1 :]), len(turns))
    return [name for _, name in dict.fromkeys(turns[first:])]
