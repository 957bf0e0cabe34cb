"""Vibration monitor: samples are quantised to levels, then every level gets its vector from a book."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEV, LEVELS, D = "cuda", 128, 256


@triton.jit
def to_levels(x_ptr, code_ptr, n, inv_step, half, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    x = tl.load(x_ptr + i, mask=live, other=0.0)
    tl.store(code_ptr + i, tl.floor(x * inv_step).to(tl.int32) + half, mask=live)


@triton.jit
def level_vectors(code_ptr, book_ptr, out_ptr, n, D: tl.constexpr, ROWS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = (r < n)[:, None]
    col = tl.arange(0, D)[None, :]
    code = tl.load(code_ptr + r, mask=r < n, other=0).to(tl.int64)
    v = tl.load(book_ptr + code[:, None] * D + col, mask=live, other=0.0)
    tl.store(out_ptr + r.to(tl.int64)[:, None] * D + col, v, mask=live)


@triton_op("vib::levels", mutates_args={})
def levels(x: torch.Tensor, inv_step: float) -> torch.Tensor:
    code = torch.empty(x.shape, dtype=torch.int32, device=x.device)
    n = x.numel()
    wrap_triton(to_levels)[(triton.cdiv(n, 256),)](x, code, n, inv_step, LEVELS // 2, BLOCK=256)
    return code


@triton_op("vib::vectors", mutates_args={})
def vectors(code: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    n = code.numel()
    out = torch.empty(*code.shape, D, dtype=book.dtype, device=book.device)
    wrap_triton(level_vectors)[(triton.cdiv(n, 4),)](code, book, out, n, D=D, ROWS=4)
    return out


class Monitor(nn.Module):
    def __init__(self):
        super().__init__()
        self.book = nn.Parameter(torch.randn(LEVELS, D) * 0.1)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.out = nn.Linear(D, 5)

    def forward(self, trace):
        code = levels(trace.contiguous(), 16.0)
        h = vectors(code, self.book)
        h = h[:, 1:] - 0.5 * h[:, :-1]
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h.mean(1))


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Monitor().eval()
        sample = torch.randn(8, 100).clamp(-3, 3)
    b, t = Dim("b", min=2, max=4096), Dim("t", min=8, max=4096)
    pkg = os.path.join(tempfile.mkdtemp(), "monitor.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (sample,), dynamic_shapes=({0: b, 1: t},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    for machine, count in (("lathe", 50), ("press", 300), ("hammer", 300)):
        trace = torch.randn(count, 257, device=DEV).clamp(-3, 3)
        if machine == "hammer":
            trace[:, ::40] += torch.linspace(1e3, 3e5, count, device=DEV)[:, None]
        y = runner(trace)
        torch.cuda.synchronize()
        print(machine, tuple(y.shape), bool(y.isfinite().all()), flush=True)


if __name__ == "__main__":
    main()
