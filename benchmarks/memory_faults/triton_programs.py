"""Memory faults in kernels of the user, and in operators that launch such kernels. Needs triton."""

from __future__ import annotations

from collections.abc import Callable

import torch
from programs import BATCH, Program, Tensors, Truth, add, ids_of, rows_of
from torch import nn
from torch.export import Dim
from triton_ops import (
    addresses,
    chase,
    doubled,
    firsts,
    half,
    left,
    library,
    lookup,
    pairs,
    rows,
    shift,
    sidestream,
    slots,
    spread,
)


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
