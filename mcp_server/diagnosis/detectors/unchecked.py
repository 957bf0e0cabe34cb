"""Scatter and index_put whose error is thrown away: an index out of range changes nothing and says nothing.

Generated wrappers of torch <= 2.13 call these shims without the error check (cpp_wrapper_cpu.py:1885-1916),
so that the call returns numbers that are partly not written.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.model import Evidence, Fix, Party
from mcp_server.package.launches import Launch
from mcp_server.steps.kernel_io import ArgumentValues, LaunchValues

INDEXING = ("scatter", "index_put", "index_add", "index_copy")


def unchecked_launches(case: Case) -> list[Launch]:
    """The launches whose error code is not looked at, and that write where an index says."""
    if case.view is None:
        return []
    return [
        launch
        for launch in case.view.wrapper.launches
        if not launch.checked and any(word in launch.kernel for word in INDEXING)
    ]


def detect(case: Case) -> Iterator[Hypothesis]:
    """Watched launches of that kind that were given an index beyond the tensor they write."""
    if case.kernel_io is None:
        return
    numbers = {launch.index for launch in unchecked_launches(case)}
    for seen in case.kernel_io.launches:
        if seen.launch in numbers:
            yield from _beyond(seen, case)


def _beyond(seen: LaunchValues, case: Case) -> Iterator[Hypothesis]:
    before = [a for a in seen.arguments if a.when == "before"]
    target = next((a for a in before if a.shape and a.role in ("written", "read_write")), None)
    for index in before:
        if target is None or target.shape is None or index.dtype != "int64" or index.max is None:
            continue
        largest = max(target.shape)
        if index.max >= largest or (index.min is not None and index.min < -largest):
            yield _hypothesis(seen, target, index, largest, case)


def _hypothesis(
    seen: LaunchValues, target: ArgumentValues, index: ArgumentValues, largest: int, case: Case
) -> Hypothesis:
    item = next((i for i in case.package.inputs if i.name == index.name), None) if case.package else None
    name = (item.path or item.name) if item is not None else index.name
    fact = f"{name} holds {index.min:.0f} to {index.max:.0f}; {target.name} has shape {target.shape}"
    return Hypothesis(
        category="index_out_of_bounds",
        guilty=Party(
            kind="input" if item is not None else "kernel",
            name=name,
            input_index=item.index if item is not None else None,
            launch_index=seen.launch,
            value=f"up to {index.max:.0f} (no dimension is larger than {largest})",
            model_locations=seen.locations[:3] or case.call_locations,
        ),
        summary=f"Launch {seen.launch} ({seen.kernel}) got an index outside what it writes, and its error is "
        f"thrown away: {fact}.",
        depth=Depth.BAD_VALUE,
        sources=frozenset({"probes", "package file"}),
        evidence=(
            Evidence(step="dump_kernel_io", fact=fact),
            Evidence(step="inspect_package", fact=f"the error code of launch {seen.launch} is not checked"),
        ),
        crashing=Party(kind="kernel", name=seen.kernel, launch_index=seen.launch),
        fix=Fix(action=f"keep {name} below the size of the dimension that is written; torch >= 2.14 raises"),
    )
