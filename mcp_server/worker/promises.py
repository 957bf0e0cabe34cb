"""What an operator's fake function promised, held against what the operator returned."""

from __future__ import annotations

from typing import Any, Optional

import torch


def difference(promised: Any, real: torch.Tensor, symbols: dict[Any, int]) -> dict[str, Any]:
    """`promised` and `returned` layouts when they differ, else nothing; steps over size 1 do not count.

    `promised` is a fake tensor; `symbols` has the values of its shape symbols in this call. A result whose
    size only the data tells is not compared.
    """
    wanted, got = layout(promised, symbols), layout(real, symbols)
    known = all(size is not None for size in wanted["shape"])
    return {"promised": wanted, "returned": got} if known and _differ(wanted, got) else {}


def layout(tensor: Any, symbols: dict[Any, int]) -> dict[str, Any]:
    """Shape and stride (elements; None where unknown), dtype, device type."""
    return {
        "shape": [_number(size, symbols) for size in tensor.shape],
        "stride": [_number(step, symbols) for step in tensor.stride()],
        "dtype": str(tensor.dtype),
        "device": tensor.device.type,
    }


def _number(size: Any, symbols: dict[Any, int]) -> Optional[int]:
    """A size with this call's values for its symbols; None for one that only the data tells."""
    if isinstance(size, int):
        return size
    value = size.node.expr.subs(symbols)
    return int(value) if value.is_number else None


def _differ(wanted: dict[str, Any], got: dict[str, Any]) -> bool:
    if any(wanted[what] != got[what] for what in ("shape", "dtype", "device")):
        return True
    steps = zip(got["shape"], wanted["stride"], got["stride"])
    return any(size > 1 and want is not None and want != have for size, want, have in steps)
