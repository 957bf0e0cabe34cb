"""Rounding or fault: the one rule by which values are compared with what they should be.

The reference is a computation as eager mode or a program makes it, once in float64, and in float64 again with
roundings drawn at random. How far an element moves in those runs, and how far the computation as it is made
is from float64 there, is what rounding does to this very element. An element x of a sum of K numbers may be
    eps * |x| + 8 * moves + (16 + 2 * sqrt(K)) * eps32 * (|x| + rms(x))
from float64 or from eager: `moves` is the root mean square of those distances, eps that of the coarser dtype,
and eps32 the smaller of it and that of float32, in which narrower values are summed. Of few runs `moves` is
doubled, and nowhere less than is typical in the tensor. Each element is judged by itself, so that one that
cancels does not hide a wrong one elsewhere.

Integers must be values that eager or one of the runs gave. NaN and infinities must be eager's, or those of a
run. If eager overflowed and float64 did not, overflows in that tensor are no difference, nor is any value
where eager has NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .events import Closeness, Rounding
from .report import Report
from .tensors import checksum, unequal, unravel, widest

NEAR = 8.0
SUMMED_EPS = 2.0**-23  # float32: no kernel sums in less
ROUNDINGS = 16.0
GROWTH = 2.0  # growth of a sum's rounding, with the square root of its length
TF32_EPS = 2.0**-10  # 10 bits of mantissa in the products of float32 matrices
FEW = 4  # runs from which on an element is known by itself; of fewer it may move so much further:
FEW_MORE = 2.0
MOST = 0.95  # of the elements of a tensor; the others may be flipped decisions, not rounding


@dataclass(frozen=True, eq=False)
class Expected:
    """The expected value: in eager mode, and from the `runs` in float64, the first of them without roundings.

    Each of its elements sums `terms` numbers.
    """

    name: str
    eager: torch.Tensor
    runs: tuple[torch.Tensor, ...] = ()
    terms: float = 1.0


def measure(got: torch.Tensor, want: Expected, factor: float = 1.0) -> Closeness:
    """How close a tensor is to what it should be, with as many elements, compared in logical order."""
    device = got.device
    actual, eager, *runs = (
        widest(each.detach().to(device).reshape(-1)) for each in (got, want.eager, *want.runs)
    )
    exact = runs[0] if runs else eager
    error = torch.minimum(_away(actual, exact), _away(actual, eager))
    for each in runs:
        error[~unequal(actual, each)] = 0
    found = Closeness(want.name, actual.numel(), equal=not bool(unequal(actual, eager).any()))
    if not bool((torch.isfinite(eager) | ~torch.isfinite(exact)).all()):
        # Eager also overflowed in this tensor. The order of a sum then decides which elements overflow.
        error[(~torch.isfinite(actual) | torch.isnan(eager)) & torch.isfinite(exact)] = 0
    allowed, coarse = _allowed(got, want, eager, runs, factor)
    ratio = error / allowed.clamp(min=1e-300)
    beyond = ratio > 1
    found.error, found.allowed, found.excess = _largest(error), _largest(allowed), _largest(ratio)
    found.eager_error = _largest(_away(eager, exact)) if runs else None
    found.beyond, found.within = int(beyond.sum()), not bool(beyond.any())
    found.within_tf32 = not bool((error > coarse).any())
    found.non_finite = int((~torch.isfinite(actual) & ~torch.isfinite(eager)).sum())
    if found.beyond:
        place = int(beyond.to(torch.uint8).argmax())
        found.first = unravel(place, tuple(want.eager.shape))
        found.values = [str(eager[place].item()), str(actual[place].item())]
    return found


def _allowed(
    got: torch.Tensor, want: Expected, eager: torch.Tensor, runs: list[torch.Tensor], factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tolerance of each element, and the tolerance if products are rounded to TF32."""
    eps = max(eps_of(each.dtype) for each in (got, want.eager))
    exact = runs[0] if runs else eager
    size = finite(exact)
    if not eps:
        return size * 0.0, size * 0.0
    growth = math.sqrt(max(want.terms, 1.0))
    summed = (ROUNDINGS + GROWTH * growth) * min(eps, SUMMED_EPS)
    both = size + rms(size)
    allowed = eps * size + summed * both + NEAR * moves(exact, [eager, *runs[1:]])
    if not runs:  # the effect of roundings is unknown
        allowed = ROUNDINGS * eps * growth * both
    return factor * allowed, factor * (allowed + ROUNDINGS * TF32_EPS * growth * both)


def moves(exact: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    """The distance that rounding moves each element."""
    squares = torch.zeros(exact.shape, dtype=torch.float64, device=exact.device)
    for each in others:  # one at a time, because a tensor may be large
        squares += finite(each - exact).square()
    found = (squares / len(others)).sqrt()
    if len(others) < FEW and found.numel():
        most = found.kthvalue(math.ceil(MOST * found.numel())).values
        found = FEW_MORE * found.clamp(min=rms(found.clamp(max=most)))
    return found


def finite(values: torch.Tensor) -> torch.Tensor:
    """Magnitudes, with 0 for values that are not finite."""
    return values.abs().double().nan_to_num(nan=0.0, posinf=0.0)


def rms(values: torch.Tensor) -> torch.Tensor:
    return values.square().mean().sqrt() if values.numel() else values.sum()


def eps_of(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point or dtype.is_complex else 0.0


def _away(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Absolute differences. Equal infinities, and NaN in both, give 0; NaN in one gives infinity."""
    away = (value - reference).abs().double().nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(unequal(value, reference), away, 0.0)


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def judge(
    wanted: list[Expected], got: list[torch.Tensor], checked: list[torch.Tensor], report: Report
) -> None:
    """Event `rounding`, for outputs of eager's shapes and dtypes.

    `checked` are tensors that the user's own check may have compared the outputs with.
    """
    if [(one.eager.shape, one.eager.dtype) for one in wanted] != [(one.shape, one.dtype) for one in got]:
        return
    own = {checksum(tensor) for tensor in got}
    theirs = [tensor for tensor in checked if checksum(tensor) not in own]
    near = []
    for each in wanted:
        alike = [one for one in theirs if (one.shape, one.dtype) == (each.eager.shape, each.eager.dtype)]
        near += [any(measure(one, each).within for one in alike)] if alike else []
    outputs = [measure(*pair) for pair in zip(got, wanted)]
    narrow = any(each.eager.dtype in (torch.float16, torch.bfloat16) for each in wanted)
    report.event(Rounding(outputs, all(near) if near else None, narrow))
