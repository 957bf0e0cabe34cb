"""Spectrum classifier with an in-house peak pooling kernel."""

import os
import tempfile

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEVICE = "cuda"


@triton.jit
def peak_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * width + col, mask=col < width, other=0.0)
        best = tl.maximum(best, x)
    tl.store(out_ptr + row, tl.max(best, 0))


@triton_op("spec::peak", mutates_args={})
def peak(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty(flat.shape[0], device=x.device)
    wrap_triton(peak_kernel)[(flat.shape[0],)](flat, out, flat.shape[1], BLOCK=256)
    return out.view(x.shape[:-1])


class Spectra(nn.Module):
    def __init__(self, bands=12, d=96):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(bands, 1) + 0.5)
        self.inp = nn.Linear(bands, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 7)

    def forward(self, level):
        h = F.silu(self.inp(peak(level * self.gain)))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h)


class Reference(Spectra):
    def forward(self, level):
        h = F.silu(self.inp((level * self.gain).amax(-1)))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h)


def main():
    torch.manual_seed(15)
    with torch.device(DEVICE):
        model = Spectra().eval()
        reference = Reference().eval()
    reference.load_state_dict(model.state_dict())
    package = os.path.join(tempfile.mkdtemp(), "spectra.pt2")
    free = {0: Dim("b", min=2, max=512), 2: Dim.AUTO}
    with torch.no_grad():
        sample = (torch.rand(4, 12, 300, device=DEVICE),)
        exported = torch.export.export(model, sample, dynamic_shapes=(free,))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for unit, offset, width in (("power", 0.0, 1000), ("ratio", 1.0, 513), ("decibel", -90.0, 2000)):
            level = torch.rand(16, 12, width, device=DEVICE) * 10 + offset
            torch.testing.assert_close(runner(level), reference(level), atol=2e-2, rtol=2e-2)
            print(unit, width, "agrees", flush=True)


if __name__ == "__main__":
    main()
