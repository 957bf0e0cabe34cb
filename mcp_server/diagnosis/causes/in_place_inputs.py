"""Inputs that the package updates in place: shared, used after the call, or copied because misaligned."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.interventions.base import Change, Intervention, Kind, Options
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Component, Evidence, Fix, ModelLocation
from mcp_server.package.inputs import copied_when_misaligned


def detect_sharing(case: DiagnosisState) -> Iterator[Suspect]:
    """Inputs of one memory, at least one of them written: export saw them as separate tensors."""
    if case.package is None:
        return
    written = written_inputs(case)
    plain = case.runs.get("plain")
    left_alone = plain.left_alone if plain is not None else []
    if written.difference(left_alone) and _checked_in_vain(case):
        yield _changed(min(written.difference(left_alone)), case)
    for group in case.sharing:
        changed = [index for index in group if index in written]
        if len(group) > 1 and changed:
            yield _sharing_suspect(group, changed[0], case)


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


def _sharing_suspect(group: list[int], changed: int, case: DiagnosisState) -> Suspect:
    assert case.package is not None
    items = [case.package.inputs[i] for i in group if i < len(case.package.inputs)]
    names = ", ".join(item.label for item in items)
    return Suspect(
        category="concurrency",
        guilty=Component(
            kind="input",
            name=items[0].path or items[0].name if items else "inputs",
            input_index=group[0],
            model_locations=case.call_locations,
        ),
        summary=f"{names} share one memory, and the package writes input {changed} in place: it was compiled "
        "for separate tensors, so that one update is seen through the other.",
        level=CausalLevel.CALL,
        evidence=(
            Evidence(
                step="check_devices", fact=f"inputs {group} have one storage; input {changed} is written"
            ),
        ),
        fix=Fix(action="pass a tensor of its own for each input", after="x.clone()"),
        harmful=not case.handled,
        observed=False,
    )


MOST_LINES = 3


def _checked_in_vain(case: DiagnosisState) -> bool:
    """Whether a check of the program failed, though the package gives what its exported program gives."""
    script = case.runs.get("script")
    root = script.root if script is not None else None
    return root is not None and "result_check" in root.family.tags and bool(case.equals_eager)


def _changed(place: int, case: DiagnosisState) -> Suspect:
    """An input that holds other values after the call, or after a reference that the model made before it."""
    assert case.package is not None
    item = case.package.inputs[place]
    lines = _writing_lines(place, case)
    fact = f"{item.label} is modified in place by the call, as it is by the model"
    return Suspect(
        category="wrong_output",
        guilty=Component(
            kind="input",
            name=item.path or item.name,
            input_index=place,
            value="changed by the call",
            model_locations=[*lines, *case.call_locations],
        ),
        summary=f"The package matches its exported program, but {fact}. A reference computed from the same "
        "tensor after the call therefore sees different values.",
        level=CausalLevel.FAULT_SITE,
        evidence=(
            Evidence(step="inspect_package", fact=fact),
            Evidence(step="interpret", fact="package and exported program agree on the inputs of the call"),
        ),
        fix=Fix(action="pass a copy to each of them, or make the model work on a copy", after="x.clone()"),
        intervention=_twice(case),
        observed=False,
    )


def _twice(case: DiagnosisState) -> Intervention | None:
    """A test that can only confirm: a reference that was made before the call is out of its reach."""
    test = Intervention(
        "twice", Kind.CALL, "the call made twice on the same tensors", options=Options(twice=True)
    )
    trial = case.trials.get(test.key)
    replayed = case.call is not None and case.call.operation == "replay"
    return test if replayed and (trial is None or trial.proves) else None


def _writing_lines(place: int, case: DiagnosisState) -> list[ModelLocation]:
    """The model's lines that write in place, where there are few, and those of the launch that writes it."""
    own = case.exported.in_place if case.exported is not None else []
    return list(dict.fromkeys([*(own if len(own) <= MOST_LINES else []), *_launch_lines(place, case)]))[:3]


def _launch_lines(place: int, case: DiagnosisState) -> list[ModelLocation]:
    if case.view is None or case.package is None:
        return []
    buffer = case.view.wrapper.buffers.get(case.package.inputs[place].name)
    launches = case.view.writers.get(buffer.storage, []) if buffer is not None else []
    found = (case.view.provenance(case.view.wrapper.launches[n]).locations for n in launches)
    return list(next((lines for lines in found if lines), ()))[:3]


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


CAME_BACK = ("none", "differs")  # what the check compared may be the input, held against outputs


def detect_lost_update(case: DiagnosisState) -> Iterator[Suspect]:
    """One for each such input that the call, made again as it was, leaves unchanged.

    Only of calls that come back: a failing one has another cause.
    """
    plain = case.runs.get("plain")
    if plain is None or plain.failure not in CAME_BACK or (case.failed and not _silent(case)):
        return
    for place, size in updated_in_a_copy(case).items():
        if place in plain.left_alone:
            yield _lost_update_suspect(place, size, case)


def _silent(case: DiagnosisState) -> bool:
    """Whether what failed is a check of the program's, and nothing inside of AOTInductor."""
    seen = case.capture
    return seen is not None and bool(seen.assertions or case.own_check) and seen.failing is None


def _lost_update_suspect(place: int, size: int, case: DiagnosisState) -> Suspect:
    assert case.package is not None
    item = case.package.inputs[place]
    call = case.capture.suspect if case.capture is not None else None
    offset = call.leaves[place].storage_offset if call is not None and place < len(call.leaves) else 0
    where = f"an address that is no multiple of {size} bytes" + (f" (offset {offset})" if offset else "")
    own = case.exported.in_place if case.exported is not None else []
    return Suspect(
        category="input_mismatch",
        guilty=Component(
            kind="input",
            name=item.path or item.name,
            input_index=place,
            value=f"at {where}",
            model_locations=[*own[:1], *case.call_locations],
        ),
        summary=f"The model updates {item.label} in place, and was given it at {where}: the package copies "
        "such an input and updates the copy, so that the caller's tensor stays as it was.",
        level=CausalLevel.CALL,
        evidence=(
            Evidence(
                step="inspect_package",
                fact=f"run_impl copies {item.label} where its address is no multiple of {size} bytes, "
                "and writes the copy",
            ),
            Evidence(step="run", fact=f"the call leaves input {place}, at such an address, as it was"),
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
