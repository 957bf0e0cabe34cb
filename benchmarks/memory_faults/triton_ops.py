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
def unmasked_kernel(x, out, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at) * 2)


@triton.jit
def stride_kernel(x, out, stride, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    col = tl.arange(0, width)
    tl.store(out + row * width + col, tl.load(x + row * stride + col))


@triton.jit
def first_kernel(values, offsets, out, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    col = tl.arange(0, width)
    start = tl.load(offsets + row)
    first = tl.load(values + start * width + col)
    tl.store(out + row * width + col, first)


@triton.jit
def wide_kernel(x, out, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    col = tl.arange(0, block)
    tl.store(out + row * block + col, tl.load(x + row * width + col))


@triton.jit
def pair_kernel(x, out, skip, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    pairs = (x + skip).to(tl.pointer_type(tl.int64))
    tl.store(out + at, tl.load(pairs + at))


@triton.jit
def slots_kernel(expert, counter, slots, n, capacity, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    live = at < n
    e = tl.load(expert + at, mask=live, other=0)
    rank = tl.atomic_add(counter + e, 1, mask=live)
    tl.store(slots + at, (e * capacity + rank).to(tl.int64), mask=live)


@triton.jit
def chase_kernel(pointers, out, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    col = tl.arange(0, width)
    source = tl.load(pointers + row).to(tl.pointer_type(tl.float32))
    tl.store(out + row * width + col, tl.load(source + col))


@triton.jit
def half_kernel(x, out, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at), mask=at < count // 2)


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


@triton_op("aotifaults::doubled", mutates_args={})
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(unmasked_kernel)[(triton.cdiv(x.numel(), 128),)](x, out, block=128)
    return out


@triton_op("aotifaults::rows", mutates_args={})
def rows(x: torch.Tensor, stride: int) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(stride_kernel)[(x.shape[0],)](x, out, stride, width=x.shape[1])
    return out


@triton_op("aotifaults::firsts", mutates_args={})
def firsts(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.empty(offsets.shape[0], values.shape[1], device=values.device)
    wrap_triton(first_kernel)[(offsets.shape[0],)](values, offsets, out, width=values.shape[1])
    return out


@triton_op("aotifaults::left", mutates_args={})
def left(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], 16, device=x.device, dtype=x.dtype)
    wrap_triton(wide_kernel)[(x.shape[0],)](x, out, x.shape[1], block=16)
    return out


@triton_op("aotifaults::pairs", mutates_args={})
def pairs(x: torch.Tensor, skip: int) -> torch.Tensor:
    out = torch.empty(128, device=x.device, dtype=torch.int64)
    wrap_triton(pair_kernel)[(1,)](x, out, skip, block=128)
    return out


@triton_op("aotifaults::slots", mutates_args={})
def slots(expert: torch.Tensor, capacity: int) -> torch.Tensor:
    counter = torch.zeros(4, dtype=torch.int32, device=expert.device)
    out = torch.empty(expert.shape[0], dtype=torch.int64, device=expert.device)
    grid = (triton.cdiv(expert.shape[0], 128),)
    wrap_triton(slots_kernel)[grid](expert, counter, out, expert.shape[0], capacity, block=128)
    return out


@triton_op("aotifaults::chase", mutates_args={})
def chase(pointers: torch.Tensor, width: int) -> torch.Tensor:
    out = torch.empty(pointers.shape[0], width, device=pointers.device)
    wrap_triton(chase_kernel)[(pointers.shape[0],)](pointers, out, width=16)
    return out


@triton_op("aotifaults::half", mutates_args={})
def half(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(half_kernel)[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), block=128)
    return out


@torch.library.custom_op("aotifaults::addresses", mutates_args=())
def addresses(x: torch.Tensor) -> torch.Tensor:
    gone = torch.ones(4 << 20, device=x.device)  # freed on return: its address outlives it
    return torch.full((x.shape[0],), gone.data_ptr(), device=x.device, dtype=torch.int64)


@addresses.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], dtype=torch.int64)


@torch.library.custom_op("aotifaults::library", mutates_args=())
def library(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(64, x.shape[1], device=x.device)
    spread_kernel[(x.shape[0],)](x, ids, out, width=x.shape[1])
    return out


@library.register_fake
def _(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return x.new_empty(64, x.shape[1])


@torch.library.custom_op("aotifaults::sidestream", mutates_args=())
def sidestream(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(64, x.shape[1], device=x.device)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        spread_kernel[(x.shape[0],)](x, ids, out, width=x.shape[1])
    return out


@sidestream.register_fake
def _(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return x.new_empty(64, x.shape[1])
