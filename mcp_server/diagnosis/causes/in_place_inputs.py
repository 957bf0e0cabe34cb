"""Inputs that the package updates in place: shared, used after the call, or copied because misaligned."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.causes.common import confirming, input_component, launch_lines, name_of, seen
from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind, Options
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Component, Fix, ModelLocation
from mcp_server.package.inputs import copied_when_misaligned
from mcp_server.package.signature import CompiledInput


def written_inputs(case: DiagnosisState) -> set[int]:
    """Positions of the inputs that some launch or copy writes, as far as the package tells."""
    if case.view is None:
        return set()
    storages = written_storages(case)
    return {
        buffer.position
        for buffer in case.view.wrapper.buffers.values()
        if buffer.kind == "input" and buffer.position is not None and buffer.storage in storages
    }


def written_storages(case: DiagnosisState) -> set[int]:
    """The memory that some launch or copy of a call writes."""
    if case.view is None:
        return set()
    run = case.view.wrapper.run
    names = {name for launch in run.launches for name in launch.writes} | {t.writes for t in run.transfers}
    return {run.buffers[name].storage for name in names if name in run.buffers}


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
        yield Suspect(
            category="concurrency",
            guilty=Component(
                kind="input",
                name=name_of(items[0]) if items else "inputs",
                input_index=group[0],
                model_locations=case.call_locations,
            ),
            summary=f"{', '.join(item.label for item in items)} share one memory, and the package writes "
            f"input {changed[0]} in place: it was compiled for separate tensors, so that one update is seen "
            "through the other.",
            level=CausalLevel.CALL,
            evidence=(
                seen("check_devices", f"inputs {group} have one storage; input {changed[0]} is written"),
            ),
            fix=Fix(action="pass a tensor of its own for each input", after="x.clone()"),
            harmful=not case.handled,
            observed=False,
        )


MOST_LINES = 3


def detect_changed_input(case: DiagnosisState) -> Iterator[Suspect]:
    """An input that holds other values after the call, or after a reference that the model made before it.

    Only where a check of the program failed, though the package gives what its exported program gives.
    """
    script, plain = case.runs.get("script"), case.runs.get("plain")
    root = script.root if script is not None else None
    changed = written_inputs(case).difference(plain.left_alone if plain is not None else [])
    checked = root is not None and "result_check" in root.family.tags
    if case.package is None or not changed or not checked or not case.equals_eager:
        return
    item = case.package.inputs[min(changed)]
    fact = f"{item.label} is modified in place by the call, as it is by the model"
    twice = Intervention(
        "twice", Kind.CALL, "the call made twice on the same tensors", options=Options(twice=True)
    )
    replayed = case.call is not None and case.call.operation == "replay"
    yield Suspect(
        category="wrong_output",
        guilty=input_component(
            item, [*_writing_lines(item, case), *case.call_locations], "changed by the call"
        ),
        summary=f"The package matches its exported program, but {fact}. A reference computed from the same "
        "tensor after the call therefore sees different values.",
        level=CausalLevel.FAULT_SITE,
        evidence=(
            seen("inspect_package", fact),
            seen("interpret", "package and exported program agree on the inputs of the call"),
        ),
        fix=Fix(action="pass a copy to each of them, or make the model work on a copy", after="x.clone()"),
        # It can only confirm: a reference that was made before the call is out of its reach.
        intervention=confirming(twice, case) if replayed else None,
        observed=False,
    )


def _writing_lines(item: CompiledInput, case: DiagnosisState) -> list[ModelLocation]:
    """The model's lines that write in place, where there are few, and those of the launch that writes it."""
    own = case.exported.in_place if case.exported is not None else []
    buffer = case.view.wrapper.buffers.get(item.name) if case.view is not None else None
    writers = (
        case.view.writers.get(buffer.storage, []) if case.view is not None and buffer is not None else []
    )
    found = (launch_lines(number, case) for number in writers)
    first: list[ModelLocation] = next((lines for lines in found if lines), [])
    return list(dict.fromkeys([*(own if len(own) <= MOST_LINES else []), *first]))[:3]


def updated_in_a_copy(case: DiagnosisState) -> dict[int, int]:
    """By position, the bytes by which an address has to be divisible for the update to reach the caller.

    Of a captured call only the inputs that were given elsewhere; where the call is made from a file, its
    addresses show when it is made.
    """
    if case.view is None:
        return {}
    bytes_of = copied_when_misaligned(case.view.wrapper.text)
    written = written_inputs(case) if bytes_of else ()
    inputs = case.view.wrapper.inputs().items()
    found = {place: bytes_of[b.name] for place, b in inputs if b.name in bytes_of and place in written}
    call = case.capture.suspect if case.capture is not None else None
    if call is None:
        return found
    leaves = dict(enumerate(call.leaves))
    return {n: size for n, size in found.items() if n in leaves and 0 < leaves[n].alignment < size}


def detect_lost_update(case: DiagnosisState) -> Iterator[Suspect]:
    """One for each misaligned input that the call, made again as it was, leaves unchanged.

    Only of calls that come back, and of programs in which nothing but a check of their own failed: else there
    is another cause. What the check compared may be the input, against outputs.
    """
    plain, capture = case.runs.get("plain"), case.capture
    if plain is None or plain.failure not in ("none", "differs"):
        return
    own_check = capture is not None and bool(capture.assertions or case.own_check) and capture.failing is None
    if case.failed and not own_check:
        return
    for place, size in updated_in_a_copy(case).items():
        if place in plain.left_alone:
            yield _lost_update(place, size, case)


def _lost_update(place: int, size: int, case: DiagnosisState) -> Suspect:
    assert case.package is not None
    item = case.package.inputs[place]
    call = case.capture.suspect if case.capture is not None else None
    offset = call.leaves[place].storage_offset if call is not None and place < len(call.leaves) else 0
    where = f"an address that is no multiple of {size} bytes" + (f" (offset {offset})" if offset else "")
    own = case.exported.in_place if case.exported is not None else []
    copied = (
        f"run_impl copies {item.label} where its address is no multiple of {size} bytes, and writes the copy"
    )
    return Suspect(
        category="input_mismatch",
        guilty=input_component(item, [*own[:1], *case.call_locations], f"at {where}"),
        summary=f"The model updates {item.label} in place, and was given it at {where}: the package copies "
        "such an input and updates the copy, so that the caller's tensor stays as it was.",
        level=CausalLevel.CALL,
        evidence=(
            seen("inspect_package", copied),
            seen("run", f"the call leaves input {place}, at such an address, as it was"),
        ),
        fix=Fix(
            action=f"give the call a tensor of its own and copy it back, or lay the views out so that each "
            f"begins at a multiple of {size} bytes",
            after=f"state = x.clone(); outputs = model(…, state, …); x.copy_(state)  # x: input {place}",
        ),
        intervention=Intervention(
            f"align {place}",
            Kind.INPUT,
            f"the call with an aligned copy of input {place}",
            (Change("align", input=place),),
        ),
        harmful=not case.ended_well,
    )
