"""A multi-block prefix sum: every block waits until the one before it has published its total."""

import os
import tempfile

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEVICE, BLOCK = "cuda", 1024


@triton.jit
def scan_kernel(x_ptr, out_ptr, flag_ptr, total_ptr, n, stop, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    before = 0.0
    if block > 0:
        ready = tl.atomic_add(flag_ptr + block - 1, 0)
        while ready == 0:
            ready = tl.atomic_add(flag_ptr + block - 1, 0)
        before = tl.atomic_add(total_ptr + block - 1, 0.0)
    total = before + tl.sum(x, 0)
    tl.atomic_xchg(total_ptr + block, total)
    if total < stop:
        tl.atomic_xchg(flag_ptr + block, 1)
    tl.store(out_ptr + at, before + tl.cumsum(x, 0), mask=at < n)


@triton_op("scan::running", mutates_args={})
def running(x: torch.Tensor, stop: float) -> torch.Tensor:
    n = x.shape[0]
    blocks = triton.cdiv(n, BLOCK)
    out = torch.empty_like(x)
    flag = torch.zeros(blocks, dtype=torch.int32, device=x.device)
    total = torch.zeros(blocks, device=x.device)
    wrap_triton(scan_kernel)[(blocks,)](x, out, flag, total, n, stop, BLOCK=BLOCK)
    return out


class Budget(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(6, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 1)

    def forward(self, events, cost):
        spent = running(cost, 5e6)
        h = torch.tanh(self.inp(events)) * torch.rsqrt(1.0 + spent).unsqueeze(-1)
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h).squeeze(-1)


def events(count, price):
    return torch.randn(count, 6, device=DEVICE), torch.full((count,), price, device=DEVICE)


def main():
    torch.manual_seed(20)
    with torch.device(DEVICE):
        model = Budget().eval()
    package = os.path.join(tempfile.mkdtemp(), "budget.pt2")
    n = Dim("n", min=2, max=500_000)
    with torch.no_grad():
        exported = torch.export.export(model, events(3000, 1.0), dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for campaign, count, price in (
        ("small", 2000, 1.0),
        ("regional", 20_000, 2.0),
        ("national", 40_000, 300.0),
    ):
        y = runner(*events(count, price))
        torch.cuda.synchronize()
        print(campaign, count, round(y.mean().item(), 4), flush=True)
    print("all campaigns scored", flush=True)


if __name__ == "__main__":
    main()
