"""Which launches, phases and arguments an observation asks for."""

from __future__ import annotations

from typing import Any, Optional

from .failures import Refused
from .probes import PHASES

BITS = {"before": 1, "after": 2}


class Selection:
    """The request's choices. What is left out is not restricted.

    `launches` are numbers, `kernels` and `names` exact names (`names` of variables or parameters), `phases`
    of before and after. `skip_before` lists arguments by launch that hold nothing yet before it;
    `unset_too` asks for those, and for what is only written, all the same: to make the launch again.
    """

    def __init__(self, request: "dict[str, Any]") -> None:
        self.launches = _optional(request, "launches", int)
        self.kernels = _optional(request, "kernels", str)
        self.names = _optional(request, "names", str)
        self.phases = set(request.get("phases") or PHASES)
        if not self.phases <= set(PHASES):
            raise Refused("unknown phase", sorted(self.phases), "before, after")
        self.unset_too = bool(request.get("unset_too"))
        skipped = dict(request.get("skip_before") or {})
        self.skip_before = {int(launch): frozenset(names) for launch, names in skipped.items()}

    def mask(self) -> "Optional[bytes]":
        """What the C++ side lets through; None when every launch is asked for in both phases."""
        bits = sum(BITS[phase] for phase in self.phases)
        if self.launches is None:
            return None if bits == sum(BITS.values()) else bytes([bits]) * 65536
        return bytes(bits if n in self.launches else 0 for n in range(max(self.launches, default=0) + 1))

    def takes_kernel(self, kernel: str) -> bool:
        return self.kernels is None or kernel in self.kernels

    def takes(self, launch: int, phase: str, name: str, parameter: str, role: str) -> bool:
        """Whether an argument is to be looked at; before a launch only what holds values then."""
        if self.names is not None and name not in self.names and parameter not in self.names:
            return False
        if phase == "before":
            if self.unset_too:
                return True
            return role != "written" and name not in self.skip_before.get(launch, ())
        return role != "read"


def _optional(request: "dict[str, Any]", key: str, kind: Any) -> "Optional[frozenset[Any]]":
    values = request.get(key)
    return None if values is None else frozenset(kind(value) for value in values)
