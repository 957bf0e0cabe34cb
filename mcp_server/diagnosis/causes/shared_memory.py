"""What the program did to memory that a call reads or returns, from the log of memory."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from mcp_server.diagnosis.components import (
    agreement,
    component,
    leaf_of,
    lines_in_script,
    name_of,
    seen,
    written_inputs,
    written_storages,
)
from mcp_server.diagnosis.interventions.base import Intervention, Kind
from mcp_server.diagnosis.interventions.input import as_before
from mcp_server.diagnosis.program_seen import FilledInput
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCall, MemoryEvent
from mcp_server.model import Category, Evidence, Fix
from mcp_server.plurals import capitalized, counted
from mcp_server.recorder.replay import TakenCall
from mcp_server.worker.events import ComparedExpected


def _call_of(event: MemoryEvent, case: DiagnosisState) -> CapturedCall | None:
    return next((c for c in case.calls if (c.pid, c.number) == (event.pid, event.call)), None)


def _by_others(event: MemoryEvent, case: DiagnosisState) -> bool:
    """Whether another party wrote the input: the package does not write it."""
    return event.input not in written_inputs(case.view)


def _died(event: MemoryEvent, case: DiagnosisState) -> bool:
    call = _call_of(event, case)
    return call is not None and call is case.captured.failing and call.outcome == "unfinished"


def _kept(_event: MemoryEvent, case: DiagnosisState) -> bool:
    """Whether a check of the program failed, and every call returned."""
    checked = bool(case.captured.assertions) or case.own_check
    return checked and all(call.outcome == "ok" for call in case.calls)


def _compared(event: MemoryEvent, case: DiagnosisState) -> bool:
    """Whether the failed check compared the call of the event, or may have compared it."""
    known = [each.calls for each in case.captured.assertions[-1:] if each.calls]
    return _kept(event, case) and all(event.call in calls for calls in known)


def _as_before(event: MemoryEvent, case: DiagnosisState) -> Intervention | None:
    """The call with the input as it was before another package wrote it."""
    writer = next(each for each in case.writers if each.input == event.input)
    item = case.compiled_inputs[event.input] if event.input < len(case.compiled_inputs) else None
    file = writer.call.file
    if item is None or file is None:
        return None
    return as_before(leaf_of(item), f"{writer.package} changed it", (file, writer.place))


def _before_suspect(event: MemoryEvent, case: DiagnosisState) -> bool:
    """Whether the program wrote constants before the suspect call, which succeeds when repeated."""
    call = case.suspect_call
    if event.during:
        return case.failed and case.failure_of("plain") == "none"
    if call is None or (call.pid, call.load) != (event.pid, event.load) or case.failure_of("plain") != "none":
        return False
    if any((e.storage, e.interval) == ("constant", "call") for e in case.captured.memory):
        return False  # another thread wrote during a call, which explains more
    at_call = event.call == call.number or (event.call is None and event.n > call.n)
    return at_call and bool(_names(event, case))


def _names(event: MemoryEvent, case: DiagnosisState) -> list[str]:
    """The constants of an event without those that calls write, which a count of writes already excludes."""
    own = _written_by_calls(case) if event.act == "written" and not event.counted else ()
    host = case.package.constants if event.during and case.package is not None else ()
    full = {each.name: each.fqn for each in host}
    return [full.get(name, name) for name in event.names if name not in own]


def _written_by_calls(case: DiagnosisState) -> set[str]:
    """Constants that calls themselves change, such as buffers of the model. All updated ones if unknown."""
    if case.view is None or case.package is None:
        return {name for update in case.updates for name in update.constants}
    storages, buffers = written_storages(case.view), case.view.wrapper.buffers
    names = {c.name for c in buffers.values() if c.kind == "constant" and c.storage in storages}
    return {constant.fqn for constant in case.package.constants if constant.name in names}


def _as_expected(case: DiagnosisState) -> bool:
    """Whether the repeated call returns what the program expected."""
    expected = case.plain_run.last(ComparedExpected) if case.plain_run is not None else None
    return expected is not None and expected.equal


def _again(case: DiagnosisState) -> Iterator[Evidence]:
    returns = "returns what the program expected" if _as_expected(case) else "does not fail"
    yield seen("run", f"with the constants as originally loaded, the call {returns}")


def _alone(case: DiagnosisState) -> Iterator[Evidence]:
    if case.fails_only_alone:
        yield seen("run_alone", "the program fails as it is, but not if it waits for each call")


@dataclass(frozen=True)
class _Row:
    """The meaning of an event whose storage, act and interval are `what`.

    The first event for which the row `holds` is the suspect: likely if `sure`, otherwise possible. `more` is
    further evidence.
    """

    what: tuple[str, str, str]
    summary: str
    fact: str
    fix: str
    before: str | None = None
    after: str | None = None
    category: Category = "concurrency"
    value: str | None = None
    holds: Callable[[MemoryEvent, DiagnosisState], bool] = lambda _event, _case: True
    sure: Callable[[DiagnosisState], bool] = lambda _case: True
    more: Callable[[DiagnosisState], Iterable[Evidence]] = lambda _case: ()
    removal: Callable[[MemoryEvent, DiagnosisState], Intervention | None] = lambda _event, _case: None


ROWS = (
    _Row(
        ("constant", "moved", "update"),
        summary="The memory of user-managed constant {names} was freed or moved after load_constants: the "
        "package keeps its old address and reads whatever is there now.",
        fact="at the call, {names} is no longer where load_constants was given it",
        fix="keep these tensors where they are, or call load_constants again after a move",
    ),
    _Row(
        ("constant", "written", "update"),
        category="constants",
        summary="The program changed constants that it shares with the package (user_managed=True), so "
        "the call computes with different values: {names}.",
        fact="the values of {count} at {when} differ from those that {how} set: {names}",
        fix="let load_constants copy the weights, and call it again after each intended change; or give the "
        "package clones, keep them, and never write to them",
        before="user_managed=True",
        after="user_managed=False",
        value="written by the program after the update",
        holds=_before_suspect,
        sure=lambda case: _as_expected(case) or case.otherwise_alone is not None,
        more=_again,
    ),
    _Row(
        ("constant", "unmapped", "update"),
        category="constants",
        summary="The memory of constant {names} cannot be read. It was freed, or its file is shorter than "
        "what was mapped. The package reads it in place (user_managed=True), so the call dies with a signal.",
        fact="before the call the memory of {count} could not be read",
        fix="leave the file of mapped weights as it is (replace it by a rename), or copy the weights",
        before="user_managed=True",
        after="user_managed=False",
        value="unreadable memory",
        holds=_died,
    ),
    _Row(
        ("input", "unmapped", "call"),
        category="illegal_memory_access",
        summary="The memory of input {place} ({name}) was given back before the call that reads it: {names}.",
        fact="when the call began, the memory of input {place} was gone: {names}",
        fix="keep what owns the memory until the call has returned (a mapping, a file, an array; a storage "
        "before its resize_(0)), or copy the tensor where it is created",
        value="memory that was given back",
        holds=lambda _event, case: case.failed,
    ),
    _Row(
        ("input", "written", "call"),
        summary="Input {place} ({name}) was written while the call that reads it ran, and not by the "
        "package: another thread changes the tensor.",
        fact="input {place} was written between the start and the end of {thread}",
        fix="use a separate tensor for each thread or call, or hold one lock from the write to the end of "
        "the call; a copy at the call comes too late",
        holds=lambda event, case: (case.failed or bool(event.during)) and _by_others(event, case),
    ),
    _Row(
        ("constant", "written", "call"),
        summary="{names} was written while a call that reads it ran: the package reads the program's own "
        "tensors (user_managed=True), and another thread changes them. A call then computes with some old "
        "and some new values.",
        fact="{count} ({names}) written between the start and the end of {thread}",
        fix="let load_constants copy the new values, or hold one lock for each write and each call",
        before="user_managed=True",
        after="user_managed=False",
        value="written by another thread during a call",
        holds=lambda event, case: case.failed and bool(_names(event, case)),
    ),
    _Row(
        ("input", "written", "stream"),
        summary="Input {place} ({name}) was still being written by another stream when the package read it.",
        fact="input {place}, copied on the calling stream, differs from its content after all streams had "
        "finished; the package does not write it",
        fix="make the calling stream wait for the stream that fills the input",
        after="torch.cuda.current_stream().wait_stream(other_stream)",
        holds=_by_others,
    ),
    _Row(
        ("input", "freed", "graph"),
        summary="A CUDA graph was replayed after the memory of input {place} ({name}) of its call had been "
        "freed: the graph reads the old address, not the tensor that replaced it.",
        fact="at the replay, no tensor holds the memory of input {place} at the capture",
        fix="keep the tensor that was captured, and copy new values into it before each replay",
        before="static_input = request",
        after="static_input.copy_(request)",
    ),
    _Row(
        ("input", "freed", "stream"),
        summary="Input {place} ({name}) was freed while the package, on another stream, could still read "
        "it: the allocator reuses its memory for the next tensor at once.",
        fact="the memory of input {place} was freed, and something was allocated, before the stream that "
        "owns it waited for the stream of the call; record_stream was not called",
        fix="call record_stream on the input, or keep the input alive until that stream has finished",
        after="x.record_stream(torch.cuda.current_stream())",
        sure=lambda case: case.fails_only_alone,  # the hook waits after each call, which hides the race
        more=_alone,
    ),
    _Row(
        ("output", "written", "output"),
        summary="Output {output} of the package shares the memory of input {place}: the program wrote new "
        "values into that input while it kept the output, which changed with it.",
        fact="output {output} of a call is a view of its input {place}; later the program had written that "
        "input, and still kept the output",
        fix="copy the output before its input is written again",
        after="output = output.clone()",
        value="output {output} is a view of it",
        holds=_compared,
        sure=lambda case: bool(case.equals_eager),
        more=agreement,
    ),
    _Row(
        ("input", "written", "output"),
        summary="Output {output} of a call is input {place} ({name}) itself, or a view of it. The program "
        "wrote into that output, so the next call that was given the input read the changed values.",
        fact="output {output} of a call shares the memory of its input {place}; the program wrote into it, "
        "and gave the same memory to a later call",
        fix="copy that output before it is written (output.clone()), or return a copy from forward",
        value="written through output {output}",
        holds=_compared,
        sure=lambda case: bool(case.equals_eager),
        more=agreement,
    ),
    _Row(
        ("input", "given", "calls"),
        summary="Calls {earlier} and {call}, of two threads, were given the same tensor as input {place} "
        "({name}), with the same values: what one thread put there was lost when the other filled it.",
        fact="calls {earlier} and {call} of two threads have the same tensors, which were not written "
        "between them",
        fix="give each thread a buffer of its own; [torch.empty(shape)] * n is one tensor n times",
        value="the same tensor in two threads",
        holds=lambda event, case: _kept(event, case) and case.equals_eager is not False,
        sure=lambda case: case.failure_of("plain") == "differs",
        more=agreement,
    ),
    _Row(
        ("input", "written", "calls"),
        category="input_mismatch",
        summary="Input {place} ({name}) of call {call} is the tensor of call {earlier}, which the program "
        "has changed in place since. No other call was given a changed tensor.",
        fact="in-place operations on input {place} after call {earlier}, before it was given to call {call}",
        fix="do not change an input in place where a call may be made again: x = x / 255, not x.div_(255)",
        value="changed in place between calls",
        holds=lambda event, case: _compared(event, case) and _only_one(event, case),
        sure=lambda case: bool(case.equals_eager),
        more=agreement,
    ),
    _Row(
        ("input", "given", "packages"),
        category="input_mismatch",
        summary="{writer} changed input {place} ({name}) in place in call {earlier}: its model writes into "
        "the tensor that it is given, which call {call} reads.",
        fact="launches of {writer} write the tensor that is input {place} of call {call}",
        fix="give {writer} a copy (.clone()), or change its model not to write into its input: "
        "x = x - y, not x -= y",
        value="changed in place by {writer}",
        removal=_as_before,
    ),
)
MOST_NAMED = 4


def _only_one(event: MemoryEvent, case: DiagnosisState) -> bool:
    """Whether just one of several calls has such an event. A program that refills its buffers has many."""
    what = (event.act, event.interval, event.input)
    alike = [each for each in case.captured.memory if (each.act, each.interval, each.input) == what]
    return len(alike) == 1 and len(case.calls) > 2


_KEEP = (
    "keep the memory of {} alive until the call returns, or clone the tensor: at::from_blob copies nothing"
)
_FREED = (
    "The host had freed the memory of {} before the package read it",
    _KEEP,
    "the memory that the host frees kept",
)
_ENDED = ("{} lies in the stack frame of a function of the host that has returned", _KEEP)
_UNWRITTEN = (
    "The host gave memory that it had not written as {}",
    "write all of {} before the call",
    "new memory set to 0",
)
_SHORT = (
    "{} is longer than the memory that the host wrote for it",
    "give at::from_blob the sizes that were written for {}, or allocate and write all of it",
)
_HEAD = 32  # first bytes of a freed block, where an allocator keeps addresses


def removal_of(found: FilledInput) -> Intervention:
    """The run of the host in which this memory keeps its values, or has zeros."""
    what = (_FREED if found.memory == "freed" else _UNWRITTEN)[2]
    return Intervention(f"host:{found.memory}", Kind.ENVIRONMENT, f"the call with {what}")


def detect_unowned(case: DiagnosisState) -> Iterator[Suspect]:
    """Inputs in memory that the host had freed, had not written, or has only in part."""
    for number in case.unowned:
        if number < len(case.compiled_inputs) and case.taken is not None:
            yield _unowned(number, case.taken, case)


def _unowned(number: int, taken: TakenCall, case: DiagnosisState) -> Suspect:
    item, found = case.compiled_inputs[number], case.filled
    found = found if found is not None and found.number == number else None
    (text, fix), fact = _ENDED, "its address is below the stack pointer of the function that makes the call"
    value, trial = "in the frame of a function that has returned", None
    if found is not None:
        text, fix, _ = _FREED if found.memory == "freed" else _UNWRITTEN
        text, fix = _SHORT if found.offset > _HEAD else (text, fix)
        value = f"{counted(found.elements, 'element')} from {found.element} on"
        what = "freed memory" if found.memory == "freed" else "new memory"
        has = "has" if found.elements == 1 else "have"
        fact = f"in a run with {what} filled with one byte, {value} {has} only this byte"
        trial = removal_of(found)
    elif number in taken.short:
        (text, fix), value = _SHORT, f"in a block of {taken.short[number]} bytes"
        fact = f"it lies {value}, which is less than its sizes say"
    made = taken.made_at.get(number)
    lines = [*([made] if made is not None else []), *case.call_locations]
    return Suspect(
        category="illegal_memory_access",
        guilty=component("input", name_of(item), lines, value=value, index=item.index),
        summary=f"{capitalized(text.format(item.label))}: {fact}.",
        level=CausalLevel.CALL,
        evidence=(seen("fill_host_memory", fact),),
        fix=Fix(text=fix.format(name_of(item))),
        intervention=trial if trial is not None and trial.key in case.trials else None,
    )


def detect_memory_log(case: DiagnosisState) -> Iterator[Suspect]:
    """For each row, the first event for which it holds. Also a race that the hook did not see."""
    seen_by_hook = {each.interval for each in case.captured.memory}
    for kind in [each for each in WAITS if each not in seen_by_hook]:
        change = case.users_changes.get(("", kind))
        if change is not None and case.trials[change.key].gone:
            yield _out_of_order(kind, change, case)
    every = [*case.captured.memory, *_of_packages(case), *(case.taken.changes if case.taken else ())]
    for row in ROWS:
        told = (e for e in every if (e.storage, e.act, e.interval) == row.what)
        event = next((each for each in told if row.holds(each, case)), None)
        if event is not None:
            yield _of_row(row, event, case)


def _of_packages(case: DiagnosisState) -> list[MemoryEvent]:
    """Inputs of the failed call that another package changed in an earlier call."""
    call = case.suspect_call
    if call is None or not case.failed:
        return []
    given = partial(MemoryEvent, pid=call.pid, n=call.n, storage="input", act="given", interval="packages")
    return [given(call=call.number, earlier=each.call.number, input=each.input) for each in case.writers]


IN_ORDER = "environment:CUDA_LAUNCH_BLOCKING"  # key of the intervention that serialises GPU work


OVERWRITTEN = _Row(
    ("constant", "written", "update"),
    summary="The program writes {count} in place ({names}) that the package reads there (user_managed=True), "
    "and the writes do not wait for calls under way on the GPU. Such a call computes with some old and some "
    "new values.",
    fact="{count} written in place between {how} and {when}: {names}",
    fix="put new weights into fresh tensors and give them to load_constants between two calls; keep the old "
    "tensors until the calls under way have ended, as torch.cuda.synchronize() tells",
    after="fresh = {name: value.to(device) for name, value in checkpoint.items()}\n"
    "model.load_constants(fresh, check_full_update=True, user_managed=True)",
    value="written while a call runs on the GPU",
)


# Summary and fix for each wait that the program may lack, and for low precision.
WAITS = {
    "stream": (
        "The work on a stream does not wait for the work that was started before it on the stream around it, "
        "although they use the same memory: an input or output of the package, or memory that was freed "
        "and is in use again.",
        "let the stream wait for the stream around it before its work begins",
    ),
    "output_stream": (
        "The work after the call does not wait for the stream on which the package runs: it reads outputs "
        "that are not written yet, or writes inputs that are still read.",
        "let the work after the call wait for the stream of the call",
    ),
    "copy": (
        "A copy with non_blocking=True is still under way when the program uses its source or its target "
        "again.",
        "before the source is filled again or the target is read, wait for an event recorded after the copy; "
        "or use another buffer for each batch; or copy without non_blocking=True",
    ),
    "precision": (
        "The program allows float32 products with fewer bits (TF32 or bfloat16), which is too coarse for "
        "what it computes from them. The exported program computes with the same setting.",
        "compute in full precision where small differences of large numbers matter, or subtract what they "
        "have in common before the product",
    ),
    "": (
        "The package, or what uses its outputs, does not wait for work on the GPU that fills its inputs: the "
        "program passes if each kernel and copy ends before the next is started.",
        "let the stream of the call wait for the stream that fills its inputs, with an event recorded on "
        "that stream; do not refill a pinned buffer before its copy has ended",
    ),
}


def _out_of_order(kind: str, change: Intervention, case: DiagnosisState) -> Suspect:
    """A program that passes with a wait, in order, or with precise products."""
    passed = "the program passes under the hook, which takes time before each call and waits after it"
    shown = [seen("run_alone", passed)] if case.failure_of("script") == "none" else [*agreement(case)]
    events = [each for each in case.captured.memory if each.call is not None and _names(each, case)]
    written = [each for each in events if (each.storage, each.act) == ("constant", "written")]
    if written and not any(each.storage == "input" for each in case.captured.memory):
        found = _of_row(OVERWRITTEN, written[0], case)
        return replace(found, evidence=(*found.evidence, *shown), intervention=change)
    summary, fix = WAITS[kind]
    wait = "ready.record(filling_stream)\ntorch.cuda.current_stream().wait_event(ready)"
    party = component("call", "work on the GPU that nothing waits for", case.call_locations)
    if kind == "precision":
        changed = re.compile(re.escape(change.before_code.partition("\n")[0]))
        party = component("script", "precision of float32 products", lines_in_script(case, changed)[:1])
    return Suspect(
        category="wrong_output" if kind == "precision" else "concurrency",
        guilty=party,
        summary=summary,
        level=CausalLevel.STATE,
        evidence=tuple(shown),
        fix=Fix(text=fix, before=change.before_code or None, after=change.after_code or wait),
        intervention=change,
        only_in_program=True,
    )


def detect_kept_state(case: DiagnosisState) -> Iterator[Suspect]:
    """Buffers that each call changes, if outputs in the program differ from those of the repeated call.

    The repeated call starts with the compiled values of the buffers.
    """
    other, names = case.otherwise_alone, sorted(_written_by_calls(case)) if case.view is not None else []
    if other is None or not names or case.updates:
        return
    lines = [*case.lines_in_place[:1], *case.call_locations]
    named = ", ".join(names[:MOST_NAMED])
    numbers = f"the values of output {other.output} sum to {other.in_program:.6g} in the program"
    threads = _taking_turns(case)
    shared = f" {counted(threads, 'thread')} take turns on one load of it." if threads else ""
    once = "load the package once for each thread, or " if threads else ""
    yield Suspect(
        category="concurrency" if threads else "wrong_output",
        guilty=component("constant", names[0], lines, value="changed by each call"),
        summary=f"The package keeps {counted(len(names), 'buffer')} of the model ({named}), which each call "
        f"changes: the outputs depend on earlier calls. On its own, this call returns different numbers."
        f"{shared}",
        level=CausalLevel.STATE,
        evidence=(
            seen("capture", f"{numbers}, and to {other.alone:.6g} when the call is made alone"),
            seen("inspect_package", f"launches write {named}"),
        ),
        fix=Fix(
            text=f"{once}make {named} an input and an output of the model, so that the caller keeps the "
            "state; if the calls are meant to be independent, do not change it in forward"
        ),
        harmful=case.failed or case.symptom.judges or case.symptom.seen == "wrong-output",
        observed=True,
        only_in_program=True,
    )


def _taking_turns(case: DiagnosisState) -> int:
    """Count threads that call the load of the suspect call in turns. 0 if one ends before the next begins."""
    call = case.suspect_call
    own = [c for c in case.calls if call is not None and (c.pid, c.load) == (call.pid, call.load)]
    own.sort(key=lambda each: each.t)
    threads = len({each.thread for each in own})
    turns = sum(first.thread != second.thread for first, second in pairwise(own))
    return threads if threads <= turns else 0


def _turn(number: int | None, event: MemoryEvent, case: DiagnosisState) -> int:
    """The position among the calls of the process. `number` also counts loads and updates."""
    return sum(call.pid == event.pid and call.number <= (number or 0) for call in case.calls)


def _of_row(row: _Row, event: MemoryEvent, case: DiagnosisState) -> Suspect:
    call, names = _call_of(event, case) or case.suspect_call, _names(event, case)
    given = [u for u in case.updates if u.n < event.n and names and names[0] in u.constants]
    update = next(reversed(given), None)
    wrote = (each for each in case.writers if (event.interval, event.input) == ("packages", each.input))
    writer = next(wrote, None)
    words = _words(event, call, names, case)
    words |= {
        "how": update.how if update is not None else "load_constants",
        "writer": writer.package if writer is not None else "",
    }
    # A graph replay or update precedes the call; the check that rejects an output follows it.
    first = event.stack[:2] if event.interval == "graph" else update.stack[:1] if update is not None else []
    first = writer.call.stack[:1] if writer is not None else first
    checks = case.captured.assertions[-1:] if event.storage == "output" else []
    own = call.stack[:2] if call is not None else case.call_locations
    lines = [*first, *own, *(c.stack[0] for c in checks if c.stack)]
    value = row.value.format(**words) if row.value is not None else None
    guilty = component("input", str(words["name"]), lines, value=value, index=event.input)
    if event.storage == "constant":
        guilty = component("constant", names[0], lines, value=value)
    change = case.users_changes.get(("", event.interval))
    sure = change is not None or row.sure(case)
    removal = change or row.removal(event, case)
    fix = Fix(text=row.fix.format(**words), before=row.before, after=row.after)
    if change is not None:
        fix = Fix(text=row.fix, before=change.before_code, after=change.after_code)
    return Suspect(
        category=row.category,
        guilty=guilty,
        summary=row.summary.format(**words),
        level=CausalLevel.STATE,
        evidence=(seen("capture", row.fact.format(**words)), *row.more(case)),
        fix=fix,
        harmful=case.failed,
        weak=row.category == "constants" and not sure,
        intervention=removal,
        observed=sure,
        only_in_program=removal is None or change is not None,
    )


def _words(
    event: MemoryEvent, call: CapturedCall | None, names: Sequence[str], case: DiagnosisState
) -> dict[str, object]:
    """What the templates of a row may name of the event and its calls."""
    items = case.compiled_inputs
    return {
        "place": event.input,
        "name": name_of(items[event.input]) if event.input < len(items) else f"inputs[{event.input}]",
        "output": event.output,
        "names": ", ".join(names[:MOST_NAMED]),
        "count": counted(len(names), "constant"),
        "when": "the call" if event.call is not None else "the failed check",
        "thread": event.during or (f"a call in {call.thread_name}" if call is not None else "a call"),
        "call": _turn(event.call, event, case),
        "earlier": _turn(event.earlier, event, case),
    }
