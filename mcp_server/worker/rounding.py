"""Rounding or fault: whether a package differs from eager mode by no more than rounding moves the program.

The measure needs no compile. The program runs once in float64, and several times more in float64 with a
random rounding error of the original dtype after each operator. How far an element moves in those runs, and
how far eager is from float64 there, is what rounding does to this very element: `NEAR` times the root mean
square of these distances is allowed, and a few roundings of the result itself. Each element is judged by
itself, so that one element that cancels does not hide a wrong one elsewhere. A package that rounds less often
than eager, or sums in another order, is within this; a wrong value in a well-conditioned element is not.

Nothing is judged where eager itself differs from run to run. Integers must be values that eager or one of the
runs gave. NaN and infinities must be eager's, or those of a run.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Optional

import torch

from .eager_values import (
    GROWTH,
    ROUNDINGS,
    STORED,
    SUMMED_EPS,
    ExactRecorder,
    NoisyRecorder,
    Recorder,
    run_on_copies,
    run_wide,
)
from .events import OutputRounding, Rounding
from .report import Report
from .tensors import checksum, furthest, only_tensors, widest

RUNS = 8  # with random rounding
FEWEST = 4
LONGEST_S = 15.0  # more than that only for the fewest
MOST_EAGER_S = 5.0
NEAR = 8.0


@dataclass(frozen=True)
class Reference:
    """One output in eager mode, in float64, and there with random rounding; sums have `terms` numbers."""

    eager: torch.Tensor
    exact: torch.Tensor
    moved: tuple[torch.Tensor, ...]
    terms: float

    def unexplained(self, got: torch.Tensor) -> int:
        """How many elements of `got`, of eager's shape, are further away than rounding explains."""
        actual, eager, exact, *moved = (
            widest(tensor.detach().reshape(-1)) for tensor in (got, self.eager, self.exact, *self.moved)
        )
        if not (self.eager.is_floating_point() or self.eager.is_complex()):
            seen = [actual == one for one in (eager, exact, *moved)]
            return int((~torch.stack(seen).any(0)).sum())
        finite = torch.isfinite(actual) & torch.isfinite(exact)
        away = torch.stack([(one - exact).abs() for one in (eager, *moved)])
        usable = torch.isfinite(away)
        squares = torch.where(usable, away * away, 0.0).sum(0)
        moves = (squares / usable.sum(0).clamp(min=1)).sqrt()
        allowed = self._stored(got, exact) + NEAR * moves
        error = torch.minimum((actual - exact).abs(), (actual - eager).abs().nan_to_num(nan=math.inf))
        same = [(actual == one) | (actual.isnan() & one.isnan()) for one in (eager, exact, *moved)]
        return int((~torch.stack(same).any(0) & ~(finite & (error <= allowed))).sum())

    def _stored(self, got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """The roundings of the result itself, and of one sum, as in `eager_values`."""
        eps = max(float(torch.finfo(one.dtype).eps) for one in (got, self.eager))
        summed = (ROUNDINGS + GROWTH * math.sqrt(max(self.terms, 1.0))) * min(eps, SUMMED_EPS)
        size = torch.nan_to_num(exact.abs(), nan=0.0, posinf=0.0)
        mean = (size * size).mean().sqrt() if size.numel() else 0.0  # terms of a sum may cancel
        return STORED * eps * size + summed * (size + mean)


def references(module: Any, leaves: list[Any], report: Report) -> Optional[list[Reference]]:
    """References of all outputs; None for a program that draws random numbers or does not run in float64.

    Also for one that takes longer than `MOST_EAGER_S` in eager mode: in float64 it takes many times that.
    """
    eager = Recorder(module, frozenset(), 0, report)
    begin = time.monotonic()
    outputs = only_tensors(run_on_copies(eager, leaves))
    if time.monotonic() - begin > MOST_EAGER_S:
        return None
    again = only_tensors(run_on_copies(Recorder(module, frozenset(), 0, report), leaves))
    if [*map(checksum, outputs)] != [*map(checksum, again)]:
        return None
    exact = ExactRecorder(module, frozenset(), 0, report)
    noisy = NoisyRecorder(module, exact)
    runs: list[list[torch.Tensor]] = []
    start = time.monotonic()
    for recorder in [exact, *[noisy] * RUNS]:
        made = only_tensors(run_wide(recorder, leaves, report))
        if [one.shape for one in made] != [one.shape for one in outputs]:
            return None
        runs.append(made)
        if len(runs) > FEWEST and time.monotonic() - start > LONGEST_S:
            break
    of_each = zip(outputs, zip(*runs), eager.terms_of(outputs))
    return [Reference(one, run[0], run[1:], terms) for one, run, terms in of_each]


def judge(
    found: list[Reference], got: list[torch.Tensor], checked: list[torch.Tensor], report: Report
) -> None:
    """Event `rounding`, for outputs of eager's shapes and dtypes.

    `checked` are tensors that the user's own check may have compared the outputs with.
    """
    if [(one.eager.shape, one.eager.dtype) for one in found] != [(one.shape, one.dtype) for one in got]:
        return
    own = {checksum(tensor) for tensor in got}
    theirs = [tensor for tensor in checked if checksum(tensor) not in own]
    near = []
    for each in found:
        alike = [one for one in theirs if (one.shape, one.dtype) == (each.eager.shape, each.eager.dtype)]
        near += [not all(each.unexplained(one) for one in alike)] if alike else []
    outputs = [
        OutputRounding(
            each.unexplained(tensor),
            furthest(tensor, each.exact) or 0.0,
            furthest(each.eager, each.exact) or 0.0,
        )
        for each, tensor in zip(found, got)
    ]
    narrow = any(each.eager.dtype in (torch.float16, torch.bfloat16) for each in found)
    report.event(Rounding(outputs, all(near) if near else None, narrow))
