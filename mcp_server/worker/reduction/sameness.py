"""Whether a reproduction fails in the same way as the workload did. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Optional

from .show import DEPARTS, NOT_FINITE

# What changes between two failures of one kind: addresses, numbers, names of temporaries and files.
_VOLATILE = re.compile(r"0x[0-9a-f]+|/\S+|\d+")


@dataclass(frozen=True)
class FailureClass:
    """What a candidate must show.

    `kind` is crash (killed by `signal`), error (an exception, in `phase`), not_finite (NaN in an output if
    `nan`, else infinity) or departs. `patterns` are of the family of its text; `essence` is a line of the
    text where no family knows it.
    """

    kind: str
    signal: int = 0
    phase: str = ""
    patterns: tuple[str, ...] = ()
    essence: str = ""
    nan: bool = False

    @classmethod
    def of(cls, record: dict[str, Any]) -> "FailureClass":
        return cls(**{**record, "patterns": tuple(record.get("patterns", ()))})

    def shown_by(self, status: Optional[int], phase: str, text: str) -> bool:
        """Whether a child that ended so, with this output, failed in this way."""
        if self.kind == "not_finite":
            return status == NOT_FINITE and (not self.nan or bool(re.search(r"holds [1-9]\d* nan", text)))
        if self.kind == "departs":
            return status == DEPARTS
        if self.kind == "crash":
            return status == -self.signal and self._tells(text)
        return status == 1 and phase == self.phase and self._tells(text)

    def _tells(self, text: str) -> bool:
        if self.patterns:
            patterns = [re.compile(pattern) for pattern in self.patterns]
            return any(pattern.search(line) for line in text.splitlines() for pattern in patterns)
        wanted = essence(self.essence)
        return not wanted or any(wanted in essence(line) for line in text.splitlines())


def essence(line: str) -> str:
    """A line without what changes from run to run."""
    return _VOLATILE.sub("#", line).strip()
