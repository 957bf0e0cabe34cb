"""Tries cuts: writes each as a reproduction, runs it in a child, and keeps those that still fail."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

from ..report import Report
from .children import Child, Ended, side_by_side
from .cut import Cut, Plan, Uncuttable, size_in_bytes
from .sameness import FailureClass
from .script import Setting, write


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
