"""Inputs and package on different CUDA devices.

A call whose inputs lie on another CUDA device than the one on which its package was loaded.

Its error reaches whichever thread looks at the device next, so that another call may be the suspect one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import Captured, CapturedCall
from mcp_server.model import Component, Evidence, Fix, PackageWorkload
from mcp_server.tools import context


@dataclass(frozen=True)
class _Stray:
    """Input `place` of `call` is on `device`, the package on device `home`."""

    call: CapturedCall
    place: int
    device: str
    home: int


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where a device failed and a call had an input on another one."""
    seen = case.capture
    if seen is None or not any(call.broke_device for call in seen.calls):
        return
    orphans = [orphan for call in seen.calls if (orphan := _orphan(call, seen)) is not None]
    if orphans:
        yield _suspect(orphans[0], case)


def _orphan(call: CapturedCall, seen: Captured) -> _Stray | None:
    load = seen.load_of(call)
    home = load.device_index if load is not None else None
    if home is None:
        return None
    for place, leaf in enumerate(call.leaves):
        if leaf.device_index not in (None, home):
            return _Stray(call, place, leaf.device, home)
    return None


def _suspect(orphan: _Stray, case: DiagnosisState) -> Suspect:
    paths = case.given.paths if case.given is not None else ()
    name = paths[orphan.place] if orphan.place < len(paths) else f"input {orphan.place}"
    home = f"{orphan.device.partition(':')[0]}:{orphan.home}"
    fact = f"call {orphan.call.number} was given {name} on {orphan.device}; its package was loaded on {home}"
    return Suspect(
        category="device_mismatch",
        guilty=Component(
            kind="input",
            name=name,
            input_index=orphan.place,
            value=f"{orphan.device} (loaded on {home})",
            model_locations=orphan.call.stack[:2],
        ),
        summary=f"Call {orphan.call.number} got {name} on {orphan.device}, and its package was loaded on "
        f"{home}: its kernels reach for memory of another card, and no check compares the index.",
        level=CausalLevel.CALL,
        only_in_program=True,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(
            action=f"move it to {home} before the call; a thread's own `.cuda()` goes to its current device",
            after=f"tensor.to({home!r})",
        ),
    )


def to_be_placed(case: DiagnosisState) -> bool:
    """Whether the inputs of a package for CUDA decide that: on a machine of one GPU there is no choice."""
    workload = case.workload
    unsaid = isinstance(workload, PackageWorkload) and workload.device_index < 0
    return unsaid and case.device == "cuda" and context.SECOND_GPU.exists()


def place(case: DiagnosisState) -> None:
    """Load it where all its inputs are: what was saved on a card comes from calls on that card.

    Inputs on several cards leave it on the first one.
    """
    tensors = case.given.tensors if case.given is not None else ()
    indices = {tensor.device_index for tensor in tensors if tensor.device_type == "cuda"}
    index = indices.pop() if len(indices) == 1 else None
    if not index or case.call is None or not to_be_placed(case):
        return
    case.call.request["device_index"] = index
    case.notes.append(
        f"no device_index was given: the package is loaded on cuda:{index}, where its inputs are"
    )
