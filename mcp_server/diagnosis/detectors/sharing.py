"""One tensor given for several inputs, of which the package changes one in place."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Hypothesis]:
    """Inputs of one memory, at least one of them written: export saw them as separate tensors."""
    if case.package is None or not case.sharing:
        return
    written = written_inputs(case)
    for group in case.sharing:
        changed = [index for index in group if index in written]
        if len(group) > 1 and changed:
            yield _hypothesis(group, changed[0], case)


def written_inputs(case: Case) -> set[int]:
    """Positions of the inputs that some launch or copy writes, as far as the package tells."""
    if case.view is None:
        return set()
    run = case.view.wrapper.run
    names = {name for launch in run.launches for name in launch.writes} | {t.writes for t in run.transfers}
    storages = {run.buffers[name].storage for name in names if name in run.buffers}
    return {
        buffer.position
        for buffer in run.buffers.values()
        if buffer.kind == "input" and buffer.position is not None and buffer.storage in storages
    }


def _hypothesis(group: list[int], changed: int, case: Case) -> Hypothesis:
    assert case.package is not None
    items = [case.package.inputs[i] for i in group if i < len(case.package.inputs)]
    names = ", ".join(item.label for item in items)
    return Hypothesis(
        category="concurrency",
        guilty=Party(
            kind="input",
            name=items[0].path or items[0].name if items else "inputs",
            input_index=group[0],
            model_locations=case.call_locations,
        ),
        summary=f"{names} share one memory, and the package writes input {changed} in place: it was compiled "
        "for separate tensors, so that one update is seen through the other.",
        depth=Depth.CALL,
        sources=frozenset({"inputs", "package file"}),
        evidence=(
            Evidence(
                step="check_devices", fact=f"inputs {group} have one storage; input {changed} is written"
            ),
        ),
        fix=Fix(action="pass a tensor of its own for each input", after="x.clone()"),
        harmful=not case.handled,
        exact=False,
    )
