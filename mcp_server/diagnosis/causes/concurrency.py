"""Threads inside a model that was loaded for one thread, and inputs that the call itself writes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mcp_server.diagnosis.components import component, input_component, launch_lines, seen, written_inputs
from mcp_server.diagnosis.interventions.base import Intervention, Kind
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import Captured, CapturedCall, CapturedLoad
from mcp_server.model import Fix
from mcp_server.package.signature import copied_when_misaligned
from mcp_server.worker.protocol import Change


def detect_overlapping_calls(case: DiagnosisState) -> Iterator[Suspect]:
    """Several threads inside a model that was loaded for one thread."""
    for load in case.captured.loads:
        pair = _overlapping(case.captured, load) if load.options.get("run_single_threaded") else None
        if pair is None:
            continue
        first, second = pair
        fact = f"threads {first.thread_name} and {second.thread_name} were inside the model at the same time"
        loaded = "the model was loaded with run_single_threaded=True"
        lines = [*load.stack[:1], *first.stack[:1]]
        yield Suspect(
            category="concurrency",
            level=CausalLevel.STATE,
            only_in_program=True,
            guilty=component("call", "run_single_threaded=True, called from several threads", lines),
            summary="The package was loaded with run_single_threaded=True, which disables its "
            "synchronisation, and several threads called it at the same time.",
            evidence=tuple(seen("capture", each) for each in (fact, loaded)),
            # Without run_single_threaded a Python operator that waits can hold the GIL in one thread while
            # another one waits for its runner (torch 2.13). Only a lock is right for every model.
            fix=Fix(
                text="hold one lock, shared by all threads, around each call",
                before="model(*inputs)",
                after="with lock:\n    model(*inputs)",
            ),
            harmful=case.failed,
        )


def _overlapping(capture: Captured, load: CapturedLoad) -> tuple[CapturedCall, CapturedCall] | None:
    """Two calls of one loaded model that ran at the same time in different threads."""
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
    """An input that the call changed, if a check failed although package and program agree."""
    root = case.script_run.root if case.script_run is not None else None
    changed = written_inputs(case).difference(case.plain_run.left_alone if case.plain_run else [])
    checked = root is not None and "result_check" in root.family.tags
    if case.view is None or not changed or not checked or not case.equals_eager:
        return
    item = case.compiled_inputs[min(changed)]
    # The model's lines that write in place if they are few, and the lines of the launch that writes it.
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

    For a captured call, only misaligned inputs. The addresses of a call from a file show only in the run.
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
    return {n: size for n, size in found.items() if n in leaves and 0 < (leaves[n].alignment or 0) < size}


def detect_lost_update(case: DiagnosisState) -> Iterator[Suspect]:
    """One suspect for each misaligned input that is left unchanged when the call is made again.

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
