"""The CUDA part of the zoo: user Triton kernels, with inputs that make them fault.

Needs triton; imported only where a CUDA device is present.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from torch.export import Dim
from torch.library import triton_op, wrap_triton

from tests.zoo.models import ENTRIES, Entry
from tests.zoo.triton_ops import left, lookup, shift, spread


@triton.jit
def tall_kernel(x, out, width: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(1) * width + tl.arange(0, width)
    tl.store(out + at, tl.load(x + at))


@triton_op("aotizoo::tall", mutates_args={})
def tall(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(tall_kernel)[(1, x.shape[0])](x, out, width=x.shape[1])
    return out


class UserWide(nn.Module):
    """A user kernel whose index has 32 bits: 65,536 rows of 32,768 elements are one too many."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("row", torch.arange(32_768).to(torch.int8)[None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return left(x + self.row) + 1


class UserTall(nn.Module):
    """A user kernel with one block in y for each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tall(x.sigmoid()) * 2


class UserLookup(nn.Module):
    """A user kernel that reads a table without a check of the index."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(16, 16)
        self.register_buffer("table", torch.randn(64, 16))
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        h = self.inp(x).relu()
        return self.out(h + lookup(self.table, ids))


class UserSpread(nn.Module):
    """A user kernel that writes to slots computed by another launch."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        placed = spread(x.sigmoid(), slots * 2, 32)
        return self.out(placed).tanh()


class UserShift(nn.Module):
    """One user kernel launched three times; only the last launch depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = shift(x, 0)
        b = shift(self.mix(a), 0)
        return shift(b.sin(), (x.shape[0] - 8) * 1_000_000) + a


def _slots(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def _add(name: str, build: Any, sample: Any, dynamic: Any, bad: Any) -> None:
    ENTRIES[name] = Entry(name, build, sample, dynamic, bad, cuda_only=True)


_ROWS = Dim("rows", min=2, max=80_000)
_add(
    "user_wide",
    UserWide,
    lambda n: (torch.ones(n, 1, dtype=torch.int8),),
    ({0: _ROWS},),
    {"rows": lambda: (torch.ones(66_000, 1, dtype=torch.int8),)},
)
_add(
    "user_tall",
    UserTall,
    lambda n: (torch.ones(n, 16),),
    ({0: _ROWS},),
    {"rows": lambda: (torch.ones(70_000, 16),)},
)
_B = Dim("b", min=2, max=64)
_add(
    "user_lookup",
    UserLookup,
    lambda n: (torch.ones(n, 16), torch.arange(n)),
    ({0: _B}, {0: _B}),
    {"read": lambda: (torch.ones(8, 16), _slots(0, 1, 2, 3, 4, 500_000_000, 6, 7))},
)
_add(
    "user_spread",
    UserSpread,
    lambda n: (torch.ones(n, 16), torch.arange(n)),
    ({0: _B}, {0: _B}),
    {"write": lambda: (torch.ones(4, 16), _slots(0, 1, 2, 400_000_000))},
)
_add(
    "user_shift",
    UserShift,
    lambda n: (torch.ones(8, 16),) if n == 8 else (torch.ones(n, 16),),
    ({0: _B},),
    {"read": lambda: (torch.ones(64, 16),)},
)
