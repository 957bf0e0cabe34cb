"""Memory faults in kernels of the user, and in operators that launch such kernels. Needs triton."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from programs import BATCH, Program, Tensors, Truth, add, ids_of, rows_of
from torch import nn
from torch.export import Dim
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


class Lookup(nn.Module):
    def __init__(self, table_rows: int = 64) -> None:
        super().__init__()
        self.inp = nn.Linear(16, 16)
        self.register_buffer("table", torch.randn(table_rows, 16))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.inp(x).relu() + lookup(self.table, ids)


class Spread(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return spread(x.sigmoid(), ids * 2, 32).tanh()


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = shift(x, 0)
        b = shift(self.mix(a), 0)
        return shift(b.sin(), (x.shape[0] - 8) * 1_000_000) + a


class Tail(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(x.sin()).cos()


class Stride(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows(x.sin(), 65536).cos()


class Firsts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.head(firsts(values, offsets))


class Wide(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return left(a + b) + 1


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return pairs(x.sin(), x.shape[0] - 512) + 1


class Upstream(nn.Module):
    def forward(self, x: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        return spread(x.sin(), slots(expert, 64), 256).cos()


class Freed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return chase(addresses(x.sin()), 16) + x


class Library(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return library(x.sin(), ids).cos()


class SideStream(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return sidestream(x.sin(), ids).cos()


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return half(x.sin()).cos()


_GOOD = lambda: (rows_of(8), torch.arange(8))  # noqa: E731
_DYNAMIC = ({0: BATCH}, {0: BATCH})


def _bad_id(value: int) -> Callable[[], Tensors]:
    return lambda: (rows_of(8), ids_of(0, 1, 2, value, 4, 5, 6, 7))


_READS = Truth("lookup_kernel", "table", ("input",), 1)
_WRITES = Truth("spread_kernel", "buf", ("input",), 1)
_ONE = ({0: BATCH},)
for program in (
    Program("read_far", "user read, far", Lookup, _GOOD, _bad_id(500_000_000), _READS, _DYNAMIC),
    Program("read_adjacent", "user read, adjacent", Lookup, _GOOD, _bad_id(64), _READS, _DYNAMIC),
    Program("read_negative", "user read, negative index", Lookup, _GOOD, _bad_id(-2), _READS, _DYNAMIC),
    Program(
        "read_in_block",
        "user read, in the allocation's tail",
        lambda: Lookup(63),
        _GOOD,
        _bad_id(63),
        _READS,
        _DYNAMIC,
    ),
    Program("write_far", "user write, far", Spread, _GOOD, _bad_id(400_000_000), _WRITES, _DYNAMIC),
    Program("write_adjacent", "user write, adjacent", Spread, _GOOD, _bad_id(16), _WRITES, _DYNAMIC),
    Program("write_before", "user write, before", Spread, _GOOD, _bad_id(-1), _WRITES, _DYNAMIC),
    Program(
        "scalar_offset",
        "user read, scalar from a size; third launch of the kernel",
        Shift,
        lambda: (rows_of(8),),
        lambda: (rows_of(64),),
        Truth("shift_kernel", "buf", ("kernel",)),
        _ONE,
    ),
    Program(
        "missing_mask",
        "user write, no mask for the tail",
        Tail,
        lambda: (rows_of(8),),
        lambda: (rows_of(7),),
        Truth("unmasked_kernel", "", ("kernel",)),
        _ONE,
    ),
    Program(
        "wrong_stride",
        "user read, wrong stride",
        Stride,
        lambda: (rows_of(2),),
        lambda: (rows_of(512),),
        Truth("stride_kernel", "buf", ("kernel",)),
        _ONE,
    ),
    Program(
        "empty_tensor",
        "user read, empty tensor",
        Firsts,
        lambda: (rows_of(5), ids_of(0, 1, 2)),
        lambda: (torch.zeros(0, 16), ids_of(0, 0, 0)),
        Truth("first_kernel", "arg", ("kernel",)),
        ({0: Dim("events", min=0, max=512)}, {0: BATCH}),
    ),
    Program(
        "int32_overflow",
        "user read, int32 overflow of the offset",
        Wide,
        lambda: (torch.ones(8, 1, dtype=torch.int8), torch.ones(1, 32768, dtype=torch.int8)),
        lambda: (torch.ones(66_000, 1, dtype=torch.int8), torch.ones(1, 32768, dtype=torch.int8)),
        Truth("wide_kernel", "buf", ("kernel",)),
        ({0: Dim("n", min=2, max=100_000)}, None),
    ),
    Program(
        "misaligned",
        "user read, misaligned",
        Pairs,
        lambda: (rows_of(512),),
        lambda: (rows_of(513),),
        Truth("pair_kernel", "buf", ("kernel",)),
        _ONE,
    ),
    Program(
        "upstream",
        "user write, index of another user kernel",
        Upstream,
        lambda: (rows_of(128), torch.arange(128) % 4),
        lambda: (rows_of(4000), torch.full((4000,), 3)),
        Truth("spread_kernel", "buf", ("upstream_kernel",)),
        _DYNAMIC,
    ),
    Program(
        "use_after_free",
        "pointer to freed memory from an operator",
        Freed,
        lambda: (rows_of(8),),
        lambda: (rows_of(8),),
        Truth("chase_kernel", "", ("upstream_kernel", "op")),
        _ONE,
        # Autotuning while compiling would follow made-up pointers.
        configs=(("triton.autotune_at_compile_time", False),),
    ),
    Program(
        "custom_op",
        "kernel launched inside a custom operator",
        Library,
        _GOOD,
        _bad_id(300_000_000),
        Truth("spread_kernel", "", ("op",)),
        _DYNAMIC,
    ),
    Program(
        "multi_stream",
        "the same on a stream of its own",
        SideStream,
        _GOOD,
        _bad_id(300_000_000),
        Truth("spread_kernel", "", ("op",)),
        _DYNAMIC,
    ),
    Program(
        "host_tensor",
        "host memory given to a user kernel",
        Lookup,
        _GOOD,
        _GOOD,
        Truth("", "arg", ("input",)),
        _DYNAMIC,
        keep_devices=True,
    ),
    Program(
        "uninitialised",
        "user kernel writes half of its output",
        Half,
        lambda: (rows_of(8),),
        lambda: (rows_of(8),),
        Truth("fused", "buf", ()),
        _ONE,
        tool="initcheck",
    ),
):
    add(program)
