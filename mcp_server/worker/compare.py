"""Compares outputs, with tolerances for how far rounding alone can move a tensor from eager mode.

The tolerance of an element x of a result that sums K products is
    factor * (4 * eps + (16 + 2 * sqrt(K)) * eps32) * (|x| + rms(x))
        + 4 * max(largest error of eager itself, noise * (1 + sqrt(K) * eps32 / eps))
with eps of the coarser of the two dtypes, and eps32 the smaller of it and that of float32, in which narrower
values are summed. The second line comes from the float64 reference and grows with the depth of the program.
`noise` is the effect on the result of rounding every earlier value; it is large where large terms cancel.
Without a reference the tolerance is factor * 16 * eps * sqrt(K) * (|x| + rms(x)).

The error of an element is its distance to the nearer of eager and the reference. If eager overflowed and the
reference did not, overflows in that tensor are no difference, nor is any value where eager has NaN. Integers
must be equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.utils import _pytree

from .calling import take_if_used
from .eager_values import ExactRecorder, NoisyRecorder, Recorder, spread, tensors, widened
from .report import Report
from .tensors import checksum, unravel

# Relative and absolute tolerance of one model's output: looser than torch.testing's defaults, which are meant
# for single operators; whole numbers and bools must be equal.
TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1e-4, 1e-4),
    "float16": (1e-2, 1e-2),
    "bfloat16": (3e-2, 3e-2),
    "complex64": (1e-4, 1e-4),
    "complex128": (1e-7, 1e-7),
}
Limits = tuple[Optional[float], Optional[float]]  # rtol and atol; None takes the dtype's
EIGHT_BIT = (1.5e-1, 1.5e-1)


def compare_all(
    expected: list[torch.Tensor],
    actual: list[torch.Tensor],
    limits: Limits,
    report: Report,
    event: str = "compared",
) -> None:
    """Report a pairwise comparison. A different number of outputs counts as unequal."""
    pairs = [compare(want, got, limits) for want, got in zip(expected, actual)]
    same_count = len(expected) == len(actual)
    report.event(
        event,
        equal=same_count and all(pair["equal"] for pair in pairs),
        counts=[len(expected), len(actual)],
        outputs=pairs,
    )


def compare_frame_tensors(saved: "dict[str, torch.Tensor]", result: Any, report: Report) -> None:
    """Event `compared_held`: whether each saved tensor with the layout of an output equals that output.

    Attributes (names with a dot) are listed apart, since fewer of them belong to the call.
    """
    equal = _equal_by_name(saved, result)
    report.event(
        "compared_held",
        equal={name: same for name, same in equal.items() if "." not in name},
        attributes={name: same for name, same in equal.items() if "." in name},
    )


def compare_returned(
    returned: list[torch.Tensor], saved: "dict[str, torch.Tensor]", result: Any, report: Report
) -> None:
    """Event `compared_returned`: whether the replay equals the outputs `returned` in the program, and which
    of the program's saved tensors equal `returned`.
    """
    report.event(
        "compared_returned",
        equal=all(_equal_by_name({str(n): one for n, one in enumerate(returned)}, result).values()),
        held=_equal_by_name(saved, returned),
    )


def _equal_by_name(saved: "dict[str, torch.Tensor]", outputs: Any) -> dict[str, bool]:
    """Whether each saved tensor equals an output. Those without an output of their layout are left out."""
    tensors = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor)]
    equal: dict[str, bool] = {}
    for name, tensor in saved.items():
        alike = [one for one in tensors if (one.shape, one.dtype) == (tensor.shape, tensor.dtype)]
        if alike:
            equal[name] = any(compare(tensor, one)["equal"] for one in alike)
    return equal


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    if dtype.is_floating_point and torch.finfo(dtype).bits == 8:
        return EIGHT_BIT
    return TOLERANCES.get(str(dtype).replace("torch.", ""), (0.0, 0.0))


def compare(want: torch.Tensor, got: torch.Tensor, limits: Limits = (None, None)) -> dict[str, Any]:
    """Layout differences, counts of differing elements, the largest errors, and the first bad index."""
    facts: dict[str, Any] = {
        "shape": [list(want.shape), list(got.shape)],
        "stride": [want.stride(), got.stride()],
    }
    facts["dtype"] = [str(want.dtype).replace("torch.", ""), str(got.dtype).replace("torch.", "")]
    if want.shape != got.shape or want.dtype != got.dtype:
        return {"equal": False, **facts}
    rtol, atol = (own if asked is None else asked for own, asked in zip(tolerance(want.dtype), limits))
    return {
        **facts,
        "rtol": rtol,
        "atol": atol,
        **_differences(wide(want), wide(got), rtol, atol),
    }


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, in a dtype that holds every value of the narrower ones; int64 stays exact."""
    host = tensor.detach().cpu()
    if host.is_complex():
        return host.to(torch.complex128)
    return host.to(torch.float64) if host.is_floating_point() else host.to(torch.int64)


def _differences(want: torch.Tensor, got: torch.Tensor, rtol: float, atol: float) -> dict[str, Any]:
    bad = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    found: dict[str, Any] = {
        "equal": not bool(bad.any()),
        "differing": int(bad.sum()),
        "elements": want.numel(),
        "nan": [int(torch.isnan(want).sum()), int(torch.isnan(got).sum())],
    }
    finite = torch.isfinite(want) & torch.isfinite(got)
    if finite.any():
        error = (got[finite] - want[finite]).abs()
        found["max_abs"] = float(error.max())
        found["max_rel"] = float((error / want[finite].abs().clamp(min=1e-12)).max())
    if bad.any():
        index = tuple(int(i) for i in bad.nonzero()[0])
        found.update(first_index=list(index), first_values=[want[index].item(), got[index].item()])
    return found


ROUNDINGS = 16.0
STORED = 4.0  # roundings to the dtype of the result, which may be a narrow one
GROWTH = 2.0  # of the rounding of a sum, with the square root of its length
EAGER_ERRORS = 4.0
SUMMED_EPS = 2.0**-23  # float32: no kernel sums in less
TF32_EPS = 2.0**-10  # 10 bits of mantissa in the products of float32 matrices


@dataclass(frozen=True, eq=False)
class Expected:
    """The eager value of one node, its float64 reference `exact`, and the number of `terms` in each sum.

    `noise` is how far rounding of all earlier values moves it.
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
    actual, eager = _flat_wide(got), _flat_wide(want.eager)
    reference = _flat_wide(want.exact) if want.exact is not None else eager
    if not (want.eager.is_floating_point() or want.eager.is_complex()):
        return _exactly(actual, eager, want)
    own = _error(eager, reference)
    error = torch.minimum(_error(actual, reference), _error(actual, eager))
    error = torch.where(_overflowed(actual, eager, reference), 0.0, error)
    eps = max(_eps(got.dtype), _eps(want.eager.dtype))
    slack = EAGER_ERRORS * _eager_slack(own, want, eps)
    allowed = _allowed(reference, _unit(want, eps) * factor, slack)
    ratio = _ratio(error, allowed)
    coarse = _ratio(error, _allowed(reference, _unit_of_products(want, TF32_EPS) * factor, slack))
    return {
        **_first_beyond(actual, eager, ratio > 1, want),
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
    found = _first_beyond(actual, eager, actual != eager, want)
    return {**found, "error": error, "within": same, "within_tf32": same, "equal": same, "allowed": 0.0}


def _first_beyond(
    actual: torch.Tensor, eager: torch.Tensor, beyond: torch.Tensor, want: Expected
) -> dict[str, Any]:
    """The node, and the first element that is beyond the tolerance, with both values."""
    found: dict[str, Any] = {"node": want.node, "elements": actual.numel(), "beyond": int(beyond.sum())}
    if found["beyond"]:
        place = int(beyond.to(torch.uint8).argmax())
        found["first"] = unravel(place, tuple(want.eager.shape))
        found["values"] = [str(eager[place].item()), str(actual[place].item())]
    return found


def _flat_wide(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        return flat.to(torch.complex128)
    return flat.to(torch.float64) if flat.is_floating_point() else flat.to(torch.int64)


def _eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point or dtype.is_complex else 0.0


def _error(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Absolute differences. Equal infinities, and NaN in both, give 0; NaN in one gives infinity."""
    difference = (value - reference).abs()
    same = (value == reference) | (torch.isnan(value) & torch.isnan(reference))
    return torch.where(same, 0.0, torch.where(torch.isnan(difference), math.inf, difference))


def _overflowed(actual: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Mask of overflows to ignore: non-finite here or NaN in eager, where the reference is finite.

    Only in a tensor where eager overflowed too: the order of a sum then decides which elements overflow.
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


def _eager_slack(own: torch.Tensor, want: Expected, eps: float) -> float:
    """How far eager itself may be off: its largest error, or the noise of its inputs."""
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


def expectations(
    module: Any, leaves: list[Any], wanted: Optional[frozenset[str]], cap: int, report: Report
) -> tuple[dict[str, list[Expected]], list[Expected]]:
    """The eager values by node and of the outputs, with float64 references unless that run failed.

    Event `eager_again` reports whether a second eager run gave the same outputs.
    """
    take_if_used()
    report.event("running_eager")
    eager = Recorder(module, wanted, cap, report)
    result = _run(eager, leaves)
    again = _run(Recorder(module, frozenset(), 0, report), leaves)
    report.event("eager_again", same=_checksums(result) == _checksums(again))
    report.event("running_float64", nodes=len(eager.kept), left_out=eager.left_out)
    exact = ExactRecorder(module, wanted, cap, report)
    precise = _run_wide(exact, leaves, report)
    noisy = NoisyRecorder(module, exact)
    moved = _run_wide(noisy, leaves, report) if precise is not None else None
    return _joined(eager.kept, exact.kept, noisy.noise), _outputs(eager, result, precise, moved)


def _outputs(eager: Recorder, result: Any, precise: Any, moved: Any) -> list[Expected]:
    """The outputs of the whole program, each with the longest sum behind it."""
    wanted, exact, noisy = tensors(result), tensors(precise), tensors(moved)
    fits, known = len(exact) == len(wanted), len(noisy) == len(wanted)
    return [
        Expected(
            "output {}".format(place),
            tensor,
            exact[place] if fits else None,
            eager.ends[place] if len(eager.ends) == len(wanted) else max(eager.ends, default=1.0),
            spread(noisy[place], exact[place]) if fits and known else 0.0,
        )
        for place, tensor in enumerate(wanted)
    ]


def _run(recorder: Recorder, leaves: list[Any]) -> Any:
    """Run on copies of the inputs, and restore the buffers that the program changes."""
    buffers = [(buffer, buffer.clone()) for buffer in recorder.module.buffers()]
    with torch.no_grad():
        outputs = _copied(recorder.run(*_copied(leaves), enable_io_processing=False))
        for buffer, value in buffers:
            buffer.copy_(value)
    return outputs


def _run_wide(exact: ExactRecorder, leaves: list[Any], report: Report) -> Any:
    try:
        return _run(exact, [widened(leaf) for leaf in leaves])
    except Exception as error:
        report.event("no_float64", text="{}: {}".format(type(error).__name__, error)[:500])
        return None


def _checksums(result: Any) -> list[str]:
    return [checksum(tensor) for tensor in tensors(result)]


def _joined(
    eager: dict[str, list[tuple[torch.Tensor, float]]],
    exact: dict[str, list[tuple[torch.Tensor, float]]],
    noise: dict[str, list[float]],
) -> dict[str, list[Expected]]:
    found: dict[str, list[Expected]] = {}
    for node, values in eager.items():
        precise = exact.get(node, [])
        fits = len(precise) == len(values)
        spreads = noise.get(node) or [0.0] * len(values)
        for place, (tensor, terms) in enumerate(values):
            wide, moved = (precise[place][0], spreads[place]) if fits else (None, 0.0)
            found.setdefault(node, []).append(Expected(node, tensor, wide, terms, moved))
    return found


def _copied(tree: Any) -> Any:
    """The same with tensors of its own."""
    return _pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)
