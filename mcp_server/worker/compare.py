"""Compare two sets of outputs."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .report import Report

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
    """Compare pairwise and tell; a missing output makes the whole unequal."""
    pairs = [compare(want, got, limits) for want, got in zip(expected, actual)]
    same_count = len(expected) == len(actual)
    report.event(
        event,
        equal=same_count and all(pair["equal"] for pair in pairs),
        counts=[len(expected), len(actual)],
        outputs=pairs,
    )


def compare_held(held: "dict[str, torch.Tensor]", result: Any, report: Report) -> None:
    """Event `compared_held`: whether each tensor that has the layout of an output equals one.

    `attributes` is the same of attributes, whose names have a dot: there are more of them, and fewer of them
    belong to the call.
    """
    equal = _held_against(held, result)
    report.event(
        "compared_held",
        equal={name: same for name, same in equal.items() if "." not in name},
        attributes={name: same for name, same in equal.items() if "." in name},
    )


def compare_returned(
    returned: list[torch.Tensor], held: "dict[str, torch.Tensor]", result: Any, report: Report
) -> None:
    """Event `compared_returned`: whether the call gives what it gave in the program, and which of the tensors
    that the program held equal what it gave then.
    """
    report.event(
        "compared_returned",
        equal=all(_held_against({str(n): one for n, one in enumerate(returned)}, result).values()),
        held=_held_against(held, returned),
    )


def _held_against(held: "dict[str, torch.Tensor]", outputs: Any) -> dict[str, bool]:
    """Of those that have the layout of an output."""
    tensors = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor)]
    equal: dict[str, bool] = {}
    for name, tensor in held.items():
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
    return {**facts, "rtol": rtol, "atol": atol, **_differences(_wide(want), _wide(got), rtol, atol)}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
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
