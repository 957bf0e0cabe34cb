"""Inputs that the package changes in place: given twice, or used by the program after the call."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, ModelLocation, Party


def detect(case: Case) -> Iterator[Suspect]:
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
            yield _suspect(group, changed[0], case)


def written_inputs(case: Case) -> set[int]:
    """Positions of the inputs that some launch or copy writes, as far as the package tells."""
    if case.view is None:
        return set()
    storages = written_storages(case)
    return {
        buffer.position
        for buffer in case.view.wrapper.buffers.values()
        if buffer.kind == "input" and buffer.position is not None and buffer.storage in storages
    }


def written_storages(case: Case) -> set[int]:
    """The memory that some launch or copy of a call writes."""
    if case.view is None:
        return set()
    run = case.view.wrapper.run
    names = {name for launch in run.launches for name in launch.writes} | {t.writes for t in run.transfers}
    return {run.buffers[name].storage for name in names if name in run.buffers}


def _suspect(group: list[int], changed: int, case: Case) -> Suspect:
    assert case.package is not None
    items = [case.package.inputs[i] for i in group if i < len(case.package.inputs)]
    names = ", ".join(item.label for item in items)
    return Suspect(
        category="concurrency",
        guilty=Party(
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
CHECKS = frozenset({"own_check", "tensors_not_close"})


def _checked_in_vain(case: Case) -> bool:
    """Whether a check of the program failed, though the package gives what its exported program gives."""
    script = case.runs.get("script")
    return script is not None and script.family in CHECKS and bool(case.equals_eager)


def _changed(place: int, case: Case) -> Suspect:
    """An input that holds other values after the call, or after a reference that the model made before it."""
    assert case.package is not None
    item = case.package.inputs[place]
    lines = _writing_lines(place, case)
    fact = f"{item.label} is written in place by the call, as by the model"
    return Suspect(
        category="wrong_output",
        guilty=Party(
            kind="input",
            name=item.path or item.name,
            input_index=place,
            value="changed by the call",
            model_locations=[*lines, *case.call_locations],
        ),
        summary=f"The package agrees with its exported program, and {fact}: of the call and a reference that "
        "is computed from the same tensor, the second gets other values.",
        level=CausalLevel.FAULT_SITE,
        evidence=(
            Evidence(step="inspect_package", fact=fact),
            Evidence(step="interpret", fact="package and exported program agree on the inputs of the call"),
        ),
        fix=Fix(action="give each of the two a copy, or let the model work on one", after="x.clone()"),
        intervention=_twice(case),
        observed=False,
    )


def _twice(case: Case) -> Intervention | None:
    """A test that can only confirm: a reference that was made before the call is out of its reach."""
    test = Intervention(
        "twice", Kind.CALL, "the call made twice on the same tensors", options=Options(twice=True)
    )
    trial = case.trials.get(test.key)
    replayed = case.call is not None and case.call.operation == "replay"
    return test if replayed and (trial is None or trial.proves) else None


def _writing_lines(place: int, case: Case) -> list[ModelLocation]:
    """The model's lines that write in place, where there are few, and those of the launch that writes it."""
    own = case.exported.in_place if case.exported is not None else []
    return list(dict.fromkeys([*(own if len(own) <= MOST_LINES else []), *_launch_lines(place, case)]))[:3]


def _launch_lines(place: int, case: Case) -> list[ModelLocation]:
    if case.view is None or case.package is None:
        return []
    buffer = case.view.wrapper.buffers.get(case.package.inputs[place].name)
    launches = case.view.writers.get(buffer.storage, []) if buffer is not None else []
    found = (case.view.provenance(case.view.wrapper.launches[n]).locations for n in launches)
    return list(next((lines for lines in found if lines), ()))[:3]
