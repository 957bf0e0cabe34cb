"""Whether a reproduction fails in the same way as the workload did. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Optional

from .show import DEPARTS, NOT_FINITE

# What changes between two failures of one kind: addresses, numbers, names of temporaries, kernels and files.
_VOLATILE = re.compile(r"0x[0-9a-f]+|/\S+|\b(?:cpp|triton)_\w+|\d+")


@dataclass(frozen=True)
class FailureClass:
    """What a candidate must show.

    `kind` is crash (killed by `signal`), error (an exception, in `phase`), not_finite (NaN in an output if
    `nan`, else infinity) or departs. `patterns` are of the family of its text; `essence` is a line of the
    text where no family knows it, or where the family alone would take one failed compile for another.
    """

    kind: str
    signal: int = 0
    phase: str = ""
    patterns: tuple[str, ...] = ()
    essence: str = ""
    nan: bool = False

    @property
    def in_compile(self) -> bool:
        """Whether the compiler refused the program: then no value of it plays a part."""
        return (self.kind, self.phase) == ("error", "compiling")

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
        patterns = [re.compile(pattern) for pattern in self.patterns]
        wanted = essence(self.essence)
        for line in text.splitlines() or [""]:
            known = not patterns or any(pattern.search(line) for pattern in patterns)
            if known and (not wanted or wanted in essence(line)):
                return True
        return False


def essence(line: str) -> str:
    """A line without what changes from run to run."""
    return _VOLATILE.sub("#", line).strip()
