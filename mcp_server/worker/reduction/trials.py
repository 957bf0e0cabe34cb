"""Tries cuts and keeps those that still fail in the same way."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence, TypeVar

from ..report import Report
from .children import Child, Ended, side_by_side
from .cut import Cut, Plan, Uncuttable, size_in_bytes
from .script import Setting, write
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


class OutOfTime(Exception):
    """The time for the reduction is over."""


@dataclass(frozen=True)
class Limits:
    """`until` is on the monotonic clock; `each_s` bounds one candidate."""

    until: float
    each_s: float
    side_by_side: int


@dataclass
class Trials:
    """`held` is the smallest plan that still failed; its reproduction lies in `directory`/best."""

    make: Callable[[Plan], Cut]
    describe: Callable[[Plan], dict[str, Any]]
    failure: FailureClass
    setting: Setting
    limits: Limits
    fork: bool
    directory: str
    report: Report
    held: Optional[Plan] = None
    tried: dict[Plan, bool] = field(default_factory=dict)
    count: int = 0

    def first_failing(self, plans: Sequence[Plan]) -> Optional[int]:
        """The number of the first plan that still fails in the same way; None when none does.

        Raises `OutOfTime`.
        """
        known = next((n for n, plan in enumerate(plans) if self.tried.get(plan)), None)
        ahead = plans[:known] if known is not None else plans
        written = [(n, path) for n, path in ((n, self._write(plan)) for n, plan in enumerate(ahead)) if path]
        try:
            found = self._first(written, plans)
        finally:
            for _, path in written:
                shutil.rmtree(path, ignore_errors=True)
        return found if found is not None else known

    def _first(self, written: list[tuple[int, str]], plans: Sequence[Plan]) -> Optional[int]:
        """Wait until one fails and all before it have ended otherwise."""
        results: dict[int, bool] = {}
        run = side_by_side([path for _, path in written], self._start, self.limits.side_by_side)
        try:
            for place, ended in run:
                if ended.status is None and time.monotonic() >= self.limits.until:
                    raise OutOfTime  # it was ended by the clock of the reduction, which says nothing
                number = written[place][0]
                results[place] = self.tried[plans[number]] = self._judge(plans[number], ended)
                first = next((p for p in range(len(written)) if results.get(p, True)), None)
                if first in results:
                    self._hold(plans[written[first][0]], written[first][1])
                    return written[first][0]
        finally:
            run.close()  # type: ignore[attr-defined]
        return None

    def _write(self, plan: Plan) -> Optional[str]:
        """The directory of a new reproduction; None for a plan that was tried or cannot be cut."""
        if plan in self.tried:
            return None
        path = os.path.join(self.directory, "candidate-{}".format(self.count))
        self.count += 1
        try:
            found = self.make(plan)
        except Uncuttable as reason:
            self.tried[plan] = False
            self.report.event("uncuttable", nodes=len(plan.keep), reason=str(reason))
            return None
        os.makedirs(path)
        write(found, plan.made, self.setting, path)
        return path

    def _start(self, directory: str) -> Child:
        left = self.limits.until - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return Child(directory, self.fork, min(self.limits.each_s, left))

    def _judge(self, plan: Plan, ended: Ended) -> bool:
        text, phase = ended.text, ended.phase
        same = self.failure.shown_by(ended.status, phase, text)
        self.report.event(
            "candidate",
            nodes=len(plan.keep),
            status=ended.status,
            phase=phase,
            seconds=ended.seconds,
            same=same,
            tail="" if same else text[-300:],
        )
        return same

    def _hold(self, plan: Plan, path: str) -> None:
        """Make this what the link `best` leads to: a stop at any time leaves a whole reproduction there."""
        self.held = plan
        final = os.path.join(self.directory, "best-{}".format(self.count))
        self.count += 1
        os.rename(path, final)
        link = os.path.join(self.directory, "best")
        os.symlink(os.path.basename(final), link + ".new")
        os.replace(link + ".new", link)
        self.report.event("held", directory=final, **self.describe(plan), **_values(plan, self.make(plan)))


def _values(plan: Plan, found: Cut) -> dict[str, Any]:
    """Which tensors hold real values, and how many bytes of them there are."""
    real = {name: tensor for name, tensor in found.tensors.items() if name not in plan.made}
    return {"made": sorted(plan.made), "real": sorted(real), "bytes": size_in_bytes(real)}


T = TypeVar("T")

# Tries candidates, the earlier the better: the number of the first that still fails, None when none does.
FirstFailing = Callable[[Sequence[Sequence[T]]], Optional[int]]


def minimise(items: Sequence[T], first_failing: FirstFailing[T]) -> tuple[T, ...]:
    """A part of `items`, in their order, that fails and of which no single element can be left out.

    `items` themselves are taken to fail and are not tried. Halves come first, so that in a chain whose one
    element fails the number of rounds is logarithmic.
    """
    kept = tuple(items)
    pieces = 2
    while len(kept) >= 2:
        pieces = min(pieces, len(kept))
        parts = split(kept, pieces)
        options = [*parts, *_complements(parts)] if pieces > 2 else parts
        found = first_failing(options)
        if found is not None:
            pieces = 2 if found < len(parts) else max(2, pieces - 1)
            kept = tuple(options[found])
        elif pieces == len(kept):
            break
        else:
            pieces *= 2
    return kept


def split(items: Sequence[T], pieces: int) -> list[tuple[T, ...]]:
    """`items` in consecutive parts of nearly one length; none is empty unless there are too few items."""
    borders = [round(len(items) * piece / pieces) for piece in range(pieces + 1)]
    return [tuple(items[borders[piece] : borders[piece + 1]]) for piece in range(pieces)]


def _complements(parts: Sequence[tuple[T, ...]]) -> list[tuple[T, ...]]:
    """All parts but one, the last left out first: what comes late in a graph is rarely needed."""
    return [
        tuple(item for place, part in enumerate(parts) if place != left_out for item in part)
        for left_out in reversed(range(len(parts)))
    ]


def windows(size: int) -> list[tuple[int, int]]:
    """Half-open ranges of [0, size) to try instead of all of it."""
    half = size // 2
    return [(0, half), (half, size)] if size >= 2 else []
