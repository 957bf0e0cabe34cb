"""Highest and mean value per family of a packed genealogy; families may be empty."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEV, D = "cuda", 80


@triton.jit
def family_peaks(x_ptr, off_ptr, out_ptr, D, BLOCK_D: tl.constexpr, ROWS: tl.constexpr):
    f = tl.program_id(0)
    col = tl.arange(0, BLOCK_D)
    start = tl.load(off_ptr + f)
    end = tl.load(off_ptr + f + 1)
    best = tl.full([BLOCK_D], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_D], tl.float32)
    for first in range(start, end, ROWS):
        r = first + tl.arange(0, ROWS)
        live = (r < end)[:, None] & (col < D)[None, :]
        at = x_ptr + r[:, None] * D + col[None, :]
        best = tl.maximum(best, tl.max(tl.load(at, mask=live, other=-float("inf")), 0))
        total += tl.sum(tl.load(at, mask=live, other=0.0), 0)
    best = tl.where(end > start, best, 0.0)
    total = total / tl.maximum(end - start, 1)
    tl.store(out_ptr + f * 2 * D + col, best, mask=col < D)
    tl.store(out_ptr + f * 2 * D + D + col, total, mask=col < D)


@triton_op("tree::peaks", mutates_args={})
def peaks(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    families = offsets.shape[0] - 1
    out = x.new_empty(families, 2 * D)
    wrap_triton(family_peaks)[(families,)](x, offsets, out, D, BLOCK_D=128, ROWS=8)
    return out


class Families(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(11, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.h, self.out = nn.Linear(2 * D, D), nn.Linear(D, 6)

    def persons(self, x):
        x = F.silu(self.inp(x))
        for layer, n in zip(self.ls, self.ns):
            x = x + F.gelu(layer(n(x)))
        return x

    def forward(self, x, offsets):
        return self.out(F.relu(self.h(peaks(self.persons(x), offsets))))


def plain(model, x, offsets):
    h = model.persons(x)
    rows = []
    for s, e in zip(offsets.tolist(), offsets[1:].tolist()):
        part = h[s:e] if e > s else torch.zeros(1, D, device=DEV)
        rows.append(torch.cat([part.max(0).values, part.mean(0)]))
    return model.out(F.relu(model.h(torch.stack(rows))))


def packed(sizes):
    offsets = torch.tensor([0, *sizes]).cumsum(0).to(DEV)
    return torch.randn(int(offsets[-1]), 11, device=DEV), offsets


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Families().eval()
    n, f = Dim("n", min=2, max=100_000), Dim("f", min=3, max=10_000)
    pkg = os.path.join(tempfile.mkdtemp(), "families.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, packed([4, 3, 6, 1]), dynamic_shapes=({0: n}, {0: f}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        for parish, sizes in (
            ("hill", [5, 0, 9]),
            ("dale", [0] * 30 + [701, 1]),
            ("coast", [k % 17 for k in range(400)]),
        ):
            args = packed(sizes)
            torch.testing.assert_close(runner(*args), plain(model, *args), atol=1e-2, rtol=1e-2)
            print(parish, len(sizes), "families ok", flush=True)
    print("register closed", flush=True)


if __name__ == "__main__":
    main()
