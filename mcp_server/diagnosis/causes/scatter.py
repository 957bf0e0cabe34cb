"""Launches that write where an index says: scatter, index_put and their like.

Generated wrappers of torch <= 2.13 call the shims of scatter and index_put without the error check
(cpp_wrapper_cpu.py:1885-1916): on the CPU an index out of range then changes nothing and says nothing. On
CUDA the assertion is in ATen's own kernel, and no generated line names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.causes.eager import raising_lines
from mcp_server.diagnosis.components import launch_component
from mcp_server.diagnosis.from_origin import with_origin
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.value_sources import told
from mcp_server.model import Component, Evidence, Fix, ModelLocation
from mcp_server.package.launches import Launch
from mcp_server.tools.kernel_io import ArgumentValues, LaunchValues

# Of these, only index_put counts negative indices from the end.
INDEXING = ("scatter", "index_put", "index_add", "index_copy")


def indexing_launches(case: DiagnosisState) -> list[Launch]:
    """The launches that write where an index says."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    return [launch for launch in launches if any(word in launch.kernel for word in INDEXING)]


@dataclass(frozen=True)
class Beyond:
    """A watched launch with an index outside of the tensor that it writes: not in [low, high)."""

    seen: LaunchValues
    target: ArgumentValues
    index: ArgumentValues
    low: int
    high: int
    checked: bool


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """Watched launches of that kind that were given an index beyond the tensor they write."""
    for each in beyond(case):
        yield with_origin(_suspect(each, case), case, each.seen.launch)


def beyond(case: DiagnosisState) -> Iterator[Beyond]:
    """What was seen of such launches."""
    checked = {launch.index: launch.checked for launch in indexing_launches(case)}
    for seen in case.kernel_io.launches if case.kernel_io is not None else ():
        if seen.launch in checked:
            yield from _of_launch(seen, checked[seen.launch])


def _of_launch(seen: LaunchValues, checked: bool) -> Iterator[Beyond]:
    before = [a for a in seen.arguments if a.when == "before"]
    target = next((a for a in before if a.shape and a.role in ("written", "read_write")), None)
    for index in before:
        if target is None or target.shape is None or index.dtype != "int64" or index.max is None:
            continue
        largest = max(target.shape)
        lowest = -largest if "index_put" in seen.kernel else 0
        if index.max >= largest or (index.min is not None and index.min < lowest):
            yield Beyond(seen, target, index, lowest, largest, checked)


def _suspect(found: Beyond, case: DiagnosisState) -> Suspect:
    seen, target, index, largest = found.seen, found.target, found.index, found.high
    lost = "" if found.checked else ", and its error is thrown away"
    guilty = _maker(seen, index, case)
    held = guilty.name if guilty.kind == "input" else index.name
    made = f"; launch {guilty.launch_index} made {index.name}" if guilty.kind != "input" else ""
    fact = f"{held} holds {index.min:.0f} to {index.max:.0f}; {target.name} has shape {target.shape}"
    return Suspect(
        category="index_out_of_bounds",
        guilty=guilty.model_copy(
            update={"value": f"{index.min:.0f} to {index.max:.0f} (no dimension is larger than {largest})"}
        ),
        summary=f"Launch {seen.launch} ({seen.kernel}) got an index outside what it writes{lost}: {fact}"
        f"{made}{_behind(guilty, case)}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            Evidence(step="dump_kernel_io", fact=fact),
            Evidence(
                step="inspect_package", fact=f"launch {seen.launch} writes where {held} says{lost}{made}"
            ),
        ),
        crashing=Component(
            kind="kernel",
            name=seen.kernel,
            launch_index=seen.launch,
            model_locations=_lines(seen, case),
        ),
        fix=Fix(
            action=f"keep {held} within the size of the dimension that is written where it is made; "
            "torch >= 2.14 raises"
        ),
    )


def _maker(seen: LaunchValues, index: ArgumentValues, case: DiagnosisState) -> Component:
    """The input that is the index, else the launch that wrote it before, beside the line that uses it."""
    lines = _lines(seen, case)
    item = next((i for i in case.package.inputs if i.name == index.name), None) if case.package else None
    if item is not None:
        return Component(
            kind="input",
            name=item.path or item.name,
            input_index=item.index,
            launch_index=seen.launch,
            model_locations=lines or case.call_locations,
        )
    makers = case.view.writers_of_name.get(index.name, []) if case.view is not None else []
    before = [number for number in makers if number < (seen.launch or 0)]
    if not before or case.view is None:
        known = lines or case.call_locations
        return Component(kind="kernel", name=index.name, launch_index=seen.launch, model_locations=known)
    party = launch_component(before[-1], case.view.wrapper.launches[before[-1]].kernel, case)
    known = list(dict.fromkeys([*lines, *party.model_locations])) or case.call_locations
    return party.model_copy(update={"model_locations": known})


def _lines(seen: LaunchValues, case: DiagnosisState) -> list[ModelLocation]:
    """The line of the operator, which eager mode may refuse where the wrapper names none."""
    refused = [str(event["op"]) for event in told(case, "node_raised")[:1]]
    same = any(word in op for word in INDEXING for op in refused)
    return seen.locations[:3] or (raising_lines(case) if same else [])


def _behind(guilty: Component, case: DiagnosisState) -> str:
    """The inputs from which the launch that made the index computes it."""
    if guilty.kind == "input" or case.view is None or guilty.launch_index is None:
        return ""
    behind = case.view.inputs_behind(guilty.launch_index)
    return f", from {', '.join(behind[:3])}" if 0 < len(behind) <= 3 else ""
