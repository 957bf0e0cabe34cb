"""Facts about tensors: layout, and statistics of their values."""

from __future__ import annotations

import cmath
from typing import Any

import torch

from .checksums import checksum
from .summary import summary

MOST_SEEN = 10_000  # summaries kept
STATISTICS_LIMIT = 1 << 30  # elements; beyond it the temporaries would need gigabytes


def layout(tensor: torch.Tensor) -> dict[str, Any]:
    """dtype, shape and stride (elements), device, storage offset (elements), contiguity."""
    known = {"dtype": str(tensor.dtype).replace("torch.", ""), "device": str(tensor.device)}
    if tensor.layout is not torch.strided or tensor.is_nested:
        return {
            **known,
            "shape": None if tensor.is_nested else list(tensor.shape),
            "layout": str(tensor.layout),
        }
    return {
        **known,
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "storage_offset": tensor.storage_offset(),
        "contiguous": tensor.is_contiguous(),
        "alignment": alignment(tensor),
        "bytes": tensor.numel() * tensor.element_size(),
    }


def alignment(tensor: torch.Tensor) -> int:
    """Largest power of two up to 64 that divides the address: bytes; 0 for a tensor with no memory."""
    try:
        address = int(tensor.data_ptr())
    except RuntimeError:  # fake and meta-like tensors have no address
        return 0
    return min(address & -address, 64) if address else 0


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """nan, inf, zero (counts), min, max, mean of the finite values, and a checksum.

    Min, max and mean are left out where the dtype has no order or nothing is finite.
    """
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return {}
    tensor = tensor.detach()
    if tensor.numel() > STATISTICS_LIMIT:
        return {"skipped": "more than {} elements".format(STATISTICS_LIMIT)}
    digest = checksum(tensor)
    return {"checksum": digest, **(_numbers(tensor, digest) if tensor.numel() else {})}


_seen: dict[str, dict[str, Any]] = {}  # what a tensor holds is looked at once, though many launches read it


def _numbers(tensor: torch.Tensor, digest: str) -> dict[str, Any]:
    """The summary of the values that have this digest."""
    if digest not in _seen:
        if len(_seen) >= MOST_SEEN:
            _seen.clear()
        _seen[digest] = summary(_comparable(tensor.reshape(-1)))
    return _seen[digest]


def is_plain(value: Any) -> bool:
    """Whether it is a tensor of torch's own class, with strides: its memory is what its address says."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided


def nonfinite(tensor: torch.Tensor) -> dict[str, int]:
    """Counts of NaN and of infinities; a finite sum, without temporaries, shows that there are none."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return {"nan": 0, "inf": 0}
    values = _comparable(tensor)
    if cmath.isfinite(values.sum(dtype=_WIDE.get(values.dtype)).item()):
        return {"nan": 0, "inf": 0}
    return {"nan": int(torch.isnan(values).sum()), "inf": int(torch.isinf(values).sum())}


# A sum of finite halves may leave their range; one of floats may too, and is then counted to be sure.
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


# Dtypes with few operators, and one that holds their values and has them.
_ROOMY = {
    torch.bool: torch.uint8,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.float64,
}


def _comparable(flat: torch.Tensor) -> torch.Tensor:
    """A dtype on which isnan, min and sum exist."""
    if flat.is_floating_point() and flat.element_size() == 1:
        return flat.to(torch.float32)
    return flat.to(_ROOMY.get(flat.dtype, flat.dtype))


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """`layout` and `statistics` in one record."""
    return {**layout(tensor), **statistics(tensor)}


def leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf with its path in the tree, in the order in which AOTInductor flattens it."""
    from torch.utils import _pytree

    found, _ = _pytree.tree_flatten_with_path(tree)
    return [(_pytree.keystr(path), leaf) for path, leaf in found]


def outputs(tree: Any) -> list[dict[str, Any]]:
    """Facts of each output leaf; what is no tensor is told by its repr."""
    return [
        {"path": path, **(describe(leaf) if isinstance(leaf, torch.Tensor) else {"value": repr(leaf)[:200]})}
        for path, leaf in leaves(tree)
    ]
