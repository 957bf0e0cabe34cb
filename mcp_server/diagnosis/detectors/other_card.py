"""A call whose inputs lie on another CUDA device than the one on which its package was loaded.

Its error reaches whichever thread looks at the device next, so that another call may be the suspect one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import Captured, CapturedCall
from mcp_server.model import Evidence, Fix, Party


@dataclass(frozen=True)
class _Stray:
    """Input `place` of `call` is on `device`, the package on device `home`."""

    call: CapturedCall
    place: int
    device: str
    home: int


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where a device failed and a call had an input on another one."""
    seen = case.capture
    if seen is None or not any(call.broke_device for call in seen.calls):
        return
    strays = [stray for call in seen.calls if (stray := _stray(call, seen)) is not None]
    if strays:
        yield _suspect(strays[0], case)


def _stray(call: CapturedCall, seen: Captured) -> _Stray | None:
    load = seen.load_of(call)
    home = load.device_index if load is not None else None
    if home is None:
        return None
    for place, leaf in enumerate(call.leaves):
        if leaf.device_index not in (None, home):
            return _Stray(call, place, leaf.device, home)
    return None


def _suspect(stray: _Stray, case: Case) -> Suspect:
    paths = case.given.paths if case.given is not None else ()
    name = paths[stray.place] if stray.place < len(paths) else f"input {stray.place}"
    home = f"{stray.device.partition(':')[0]}:{stray.home}"
    fact = f"call {stray.call.number} was given {name} on {stray.device}; its package was loaded on {home}"
    return Suspect(
        category="device_mismatch",
        guilty=Party(
            kind="input",
            name=name,
            input_index=stray.place,
            value=f"{stray.device} (loaded on {home})",
            model_locations=stray.call.stack[:2],
        ),
        summary=f"Call {stray.call.number} got {name} on {stray.device}, and its package was loaded on "
        f"{home}: its kernels reach for memory of another card, and no check compares the index.",
        level=CausalLevel.CALL,
        only_in_program=True,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(
            action=f"move it to {home} before the call; a thread's own `.cuda()` goes to its current device",
            after=f"tensor.to({home!r})",
        ),
    )
