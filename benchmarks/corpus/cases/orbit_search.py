"""Follows orbits for a very long time; one launch computes all of them and says nothing meanwhile."""

import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEV, ROUNDS, STEPS = "cuda", 30, 20_000_000


@triton.jit
def follow(x_ptr, y_ptr, n, rounds, steps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    x = tl.load(x_ptr + i, mask=live, other=0.5)
    for _ in range(0, rounds):  # noqa: PIE808
        for _ in range(0, steps):  # noqa: PIE808
            x = 3.7 * x * (1.0 - x)
        x = tl.minimum(tl.maximum(x, 0.001), 0.999)
    tl.store(y_ptr + i, x, mask=live)


@triton_op("orbit::follow", mutates_args={})
def orbit(x: torch.Tensor, rounds: int, steps: int) -> torch.Tensor:
    y = torch.empty_like(x)
    n = x.numel()
    wrap_triton(follow)[(triton.cdiv(n, 128),)](x, y, n, rounds, steps, BLOCK=128)
    return y


class Orbits(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(8, d)
        self.ls = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.out = nn.Linear(d, 2)

    def forward(self, start):
        end = orbit(torch.sigmoid(start), ROUNDS, STEPS)
        h = F.silu(self.inp(end))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h)


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Orbits().eval()
        sample = torch.randn(16, 8)
    pkg = os.path.join(tempfile.mkdtemp(), "orbits.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (sample,), dynamic_shapes=({0: Dim("n", min=2, max=100_000)},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    for belt, n in (("inner", 16), ("outer", 2000)):
        begin = time.monotonic()
        y = runner(torch.randn(n, 8, device=DEV))
        torch.cuda.synchronize()
        print(
            belt, n, tuple(y.shape), bool(y.isfinite().all()), f"{time.monotonic() - begin:.0f} s", flush=True
        )
    print("orbits followed", flush=True)


if __name__ == "__main__":
    main()
