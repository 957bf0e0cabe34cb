"""Dunes: heights are smoothed by a kernel of our own, then all points are compared with each other."""

import os
import tempfile

import torch
import triton
import triton.language as tl
from torch import nn
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEV, SHARE = "cuda", 1 << 30


@triton.jit
def smooth_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here, after = tl.load(x_ptr + i), tl.load(x_ptr + i + 1)
    y = tl.where(i + 1 < n, 0.5 * (here + after), here)
    tl.store(y_ptr + i, y, mask=i < n)


@triton_op("dune::smooth", mutates_args={})
def smooth(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    wrap_triton(smooth_kernel)[(triton.cdiv(x.shape[0], 64),)](x, y, x.shape[0], BLOCK=64)
    return y


class Dunes(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp, self.out = nn.Linear(1, d), nn.Linear(d, 2)

    def forward(self, heights):
        h = torch.tanh(self.inp(smooth(heights * 0.1).unsqueeze(-1)))
        return self.out((h @ h.t()).softmax(-1) @ h)


def main():
    torch.manual_seed(42)
    with torch.device(DEV):
        model, sample = Dunes().eval(), torch.randn(100)
    package = os.path.join(tempfile.mkdtemp(), "dunes.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (sample,), dynamic_shapes=({0: Dim("n", min=2, max=100_000)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(SHARE / total)
    for sheet, points in (("a", 500), ("b", 4000), ("c", 22_000)):
        shape = runner(torch.randn(points, device=DEV))
        torch.cuda.synchronize()
        print("sheet", sheet, tuple(shape.shape), bool(shape.isfinite().all()), flush=True)
    print("map drawn", flush=True)


if __name__ == "__main__":
    main()
