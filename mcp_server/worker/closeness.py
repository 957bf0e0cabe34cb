"""How far a tensor is from the eager one, held against what rounding explains.

The tolerance of an element x of a result that sums K products is
    factor * (4 * eps + (16 + 2 * sqrt(K)) * eps32) * (|x| + rms(x))
        + 4 * max(largest error of eager itself, noise * (1 + sqrt(K) * eps32 / eps))
with eps of the coarser of the two dtypes, and eps32 the smaller of it and that of float32, in which narrower
values are summed. The second line comes from the float64 reference and grows with the depth of the program as
rounding does. `noise` is what roundings of every value before it make of the result: it is large where large
terms cancel. Without a reference the tolerance is factor * 16 * eps * sqrt(K) * (|x| + rms(x)).

An element is as far off as it is from the nearer of eager and the reference; where eager itself overflowed,
and the reference did not, no overflow of that tensor is a difference, nor is any value where eager has NaN.
Whole numbers must be equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch

from .values import unravel

ROUNDINGS = 16.0
STORED = 4.0  # roundings to the dtype of the result, which may be a narrow one
GROWTH = 2.0  # of the rounding of a sum, with the square root of its length
EAGER_ERRORS = 4.0
SUMMED_EPS = 2.0**-23  # float32: no kernel sums in less
TF32_EPS = 2.0**-10  # 10 bits of mantissa in the products of float32 matrices


@dataclass(frozen=True, eq=False)
class Expected:
    """What eager computed for one node: `exact` is the float64 reference, `terms` the products in a sum.

    `noise` is how far roundings of all that it is computed from move it.
    """

    node: str
    eager: torch.Tensor
    exact: Optional[torch.Tensor]
    terms: float
    noise: float = 0.0


def measure(got: torch.Tensor, want: Expected, factor: float) -> dict[str, Any]:
    """Errors against the reference, whether they are within the tolerance, and the first element beyond it.

    Both tensors have the same number of elements; they are compared in logical order. `excess` is the largest
    error in units of its tolerance: at most 1 when all is `within`. `within_tf32` takes the eps of TF32.
    `non_finite` counts what is finite on neither side.
    """
    actual, eager = _wide(got), _wide(want.eager)
    reference = _wide(want.exact) if want.exact is not None else eager
    if not (want.eager.is_floating_point() or want.eager.is_complex()):
        return _exactly(actual, eager, want)
    own = _error(eager, reference)
    error = torch.minimum(_error(actual, reference), _error(actual, eager))
    error = torch.where(_overflowed(actual, eager, reference), 0.0, error)
    eps = max(_eps(got.dtype), _eps(want.eager.dtype))
    slack = EAGER_ERRORS * _of_eager(own, want, eps)
    allowed = _allowed(reference, _unit(want, eps) * factor, slack)
    ratio = _ratio(error, allowed)
    coarse = _ratio(error, _allowed(reference, _unit_of_products(want, TF32_EPS) * factor, slack))
    return {
        **_told(actual, eager, ratio > 1, want),
        "error": _largest(error),
        "eager_error": _largest(own) if want.exact is not None else None,
        "allowed": _largest(allowed),
        "excess": _largest(ratio),
        "within": not bool((ratio > 1).any()),
        "within_tf32": not bool((coarse > 1).any()),
        "equal": not bool(_error(actual, eager).any()),
        "non_finite": int((~torch.isfinite(actual) & ~torch.isfinite(eager)).sum()),
    }


def _exactly(actual: torch.Tensor, eager: torch.Tensor, want: Expected) -> dict[str, Any]:
    same = not bool((actual != eager).any())
    error = float((actual - eager).abs().max()) if actual.numel() else 0.0
    told = _told(actual, eager, actual != eager, want)
    return {**told, "error": error, "within": same, "within_tf32": same, "equal": same, "allowed": 0.0}


def _told(actual: torch.Tensor, eager: torch.Tensor, beyond: torch.Tensor, want: Expected) -> dict[str, Any]:
    """The node, and the first element that is beyond the tolerance, with both values."""
    found: dict[str, Any] = {"node": want.node, "elements": actual.numel(), "beyond": int(beyond.sum())}
    if found["beyond"]:
        place = int(beyond.to(torch.uint8).argmax())
        found["first"] = unravel(place, tuple(want.eager.shape))
        found["values"] = [str(eager[place].item()), str(actual[place].item())]
    return found


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        return flat.to(torch.complex128)
    return flat.to(torch.float64) if flat.is_floating_point() else flat.to(torch.int64)


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point or dtype.is_complex else 0.0


def _error(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Absolute differences; equal infinities and NaN in both differ by nothing, NaN in one by infinity."""
    difference = (value - reference).abs()
    same = (value == reference) | (torch.isnan(value) & torch.isnan(reference))
    return torch.where(same, 0.0, torch.where(torch.isnan(difference), math.inf, difference))


def _overflowed(actual: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Where the package could not hold what the reference can, in a tensor where eager could not either: in
    which elements that is so is then for the order of a sum to say. And where eager has NaN, of infinities
    that it met on the way: what becomes of them is for that order, too.
    """
    representable = torch.isfinite(reference)
    if not bool((~torch.isfinite(eager) & representable).any()):
        return torch.zeros_like(representable)
    return (~torch.isfinite(actual) | torch.isnan(eager)) & representable


def _unit(want: Expected, eps: float) -> float:
    """The rounding of one element, in units of its size."""
    if want.exact is None:
        return _unit_of_products(want, eps)
    return STORED * eps + (ROUNDINGS + GROWTH * _growth(want)) * min(eps, SUMMED_EPS)


def _unit_of_products(want: Expected, eps: float) -> float:
    """The same when each product of a sum is rounded."""
    return ROUNDINGS * eps * _growth(want)


def _growth(want: Expected) -> float:
    return math.sqrt(max(want.terms, 1.0))


def _of_eager(own: torch.Tensor, want: Expected, eps: float) -> float:
    """How far eager itself may be off: as it is, or as roundings of what it computed from would have it."""
    finite = own[torch.isfinite(own)]
    seen = float(finite.max()) if finite.numel() else 0.0
    return max(seen, want.noise * (1 + _growth(want) * min(eps, SUMMED_EPS) / eps))


def _allowed(reference: torch.Tensor, unit: float, slack: float) -> torch.Tensor:
    size = torch.nan_to_num(reference.abs(), nan=0.0, posinf=0.0)
    rms = float((size * size).mean().sqrt()) if size.numel() else 0.0
    return unit * (size + rms) + slack


def _ratio(error: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    return torch.where(error == 0, 0.0, error / allowed.clamp(min=1e-300))


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
