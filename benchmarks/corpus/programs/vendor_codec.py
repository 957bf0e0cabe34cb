"""Neural codec front end: quantisation is done by the vendor's C library through ctypes."""

import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

SOURCE = """
#include <math.h>
/* out and in hold n values; works in blocks of 64, as the DSP does */
void quantize(float *out, const float *in, long n) {
  for (long b = 0; b < n; b += 64)
    for (int j = 0; j < 64; j++) out[b + j] = rintf(in[b + j] * 16.0f) / 16.0f;
}
"""
WORK = tempfile.mkdtemp()


def vendor():
    path = os.path.join(WORK, "libcodec.so")
    if not os.path.exists(path):
        with open(os.path.join(WORK, "codec.c"), "w") as f:
            f.write(SOURCE)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", f.name, "-o", path, "-lm"], check=True)
    return ctypes.CDLL(path)


@torch.library.custom_op("codec::quantize", mutates_args=())
def quantize(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    fn = vendor().quantize
    fn(ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(x.data_ptr()), ctypes.c_long(x.numel()))
    return out


@quantize.register_fake
def _(x):
    return torch.empty_like(x)


class Codec(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(16, d), nn.Linear(3, d), nn.Linear(d, 10)
        self.n, self.proj = nn.LayerNorm(d), nn.Linear(d, 3)

    def forward(self, x):
        h = F.gelu(self.a(x))
        q = quantize(self.proj(h))
        return self.o(self.n(h + F.gelu(self.b(q))))


def main():
    torch.manual_seed(0)
    model = Codec().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "codec.pt2")
    with torch.no_grad():
        ep = torch.export.export(
            model, (torch.randn(64, 16),), dynamic_shapes=({0: Dim("b", min=2, max=8192)},)
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    print("loaded", flush=True)
    with torch.no_grad():
        for frames in (64, 128, 640, 75, 22, 43, 131):
            y = runner(torch.randn(frames, 16))
            print("frames", frames, tuple(y.shape), flush=True)
    print("stream ended", flush=True)


if __name__ == "__main__":
    main()
