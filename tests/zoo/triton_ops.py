"""Triton kernels with memory faults, and operators around them. Needs triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton


@triton.jit
def lookup_kernel(table, ids, out, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    col = tl.arange(0, width)
    index = tl.load(ids + row)
    tl.store(out + row * width + col, tl.load(table + index * width + col))


@triton.jit
def spread_kernel(x, slots, out, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    col = tl.arange(0, width)
    slot = tl.load(slots + row)
    tl.store(out + slot * width + col, tl.load(x + row * width + col))


@triton.jit
def shift_kernel(x, out, count, shift, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    keep = at < count
    tl.store(out + at, tl.load(x + at + shift, mask=keep), mask=keep)


@triton.jit
def wide_kernel(x, out, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    col = tl.arange(0, block)
    tl.store(out + row * block + col, tl.load(x + row * width + col))


@triton_op("aotifaults::lookup", mutates_args={})
def lookup(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.empty(ids.shape[0], table.shape[1], device=table.device, dtype=table.dtype)
    wrap_triton(lookup_kernel)[(ids.shape[0],)](table, ids, out, width=table.shape[1])
    return out


@triton_op("aotifaults::spread", mutates_args={})
def spread(x: torch.Tensor, slots: torch.Tensor, rows: int) -> torch.Tensor:
    out = torch.zeros(rows, x.shape[1], device=x.device, dtype=x.dtype)
    wrap_triton(spread_kernel)[(x.shape[0],)](x, slots, out, width=x.shape[1])
    return out


@triton_op("aotifaults::shift", mutates_args={})
def shift(x: torch.Tensor, by: int) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(shift_kernel)[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), by, block=128)
    return out


@triton_op("aotifaults::left", mutates_args={})
def left(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], 16, device=x.device, dtype=x.dtype)
    wrap_triton(wide_kernel)[(x.shape[0],)](x, out, x.shape[1], block=16)
    return out
