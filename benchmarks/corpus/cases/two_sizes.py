"""A tagger in two sizes, with an in-house kernel for the row norm; both are checked before release."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEV = "cuda"


@triton.jit
def row_norm_kernel(x_ptr, w_ptr, y_ptr, width, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    live = col < width
    x = tl.load(x_ptr + r * width + col, mask=live, other=0.0)
    w = tl.load(w_ptr + col, mask=live, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, 0) / width + 1e-6)
    tl.store(y_ptr + r * width + col, x * scale * w, mask=live)


@triton_op("tagger::row_norm", mutates_args={})
def row_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    y = torch.zeros_like(flat)
    wrap_triton(row_norm_kernel)[(flat.shape[0],)](flat, w, y, flat.shape[1], BLOCK=512)
    return y.view(x.shape)


def plain_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))
        self.up, self.dn = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x, norm):
        return x + self.dn(F.gelu(self.up(norm(x, self.w))))


class Tagger(nn.Module):
    def __init__(self, d, depth):
        super().__init__()
        self.emb = nn.Embedding(2000, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.out = nn.Linear(d, 17)

    def tags(self, words, norm):
        h = self.emb(words)
        for block in self.blocks:
            h = block(h, norm)
        return self.out(h)

    def forward(self, words):
        return self.tags(words, row_norm)


def release(name, model, folder):
    b, t = Dim("b", min=2, max=256), Dim("t", min=2, max=256)
    path = os.path.join(folder, name + ".pt2")
    sample = torch.randint(0, 2000, (4, 12), device=DEV)
    ep = torch.export.export(model, (sample,), dynamic_shapes=({0: b, 1: t},))
    torch._inductor.aoti_compile_and_package(ep, package_path=path)
    return torch._inductor.aoti_load_package(path)


def main():
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    with torch.device(DEV):
        sizes = {"small": Tagger(256, 2).eval(), "medium": Tagger(640, 2).eval()}
    with torch.no_grad():
        for name, model in sizes.items():
            runner = release(name, model, folder)
            print(name, "loaded", flush=True)
            for b, t in ((4, 12), (64, 33)):
                words = torch.randint(0, 2000, (b, t), device=DEV)
                torch.testing.assert_close(runner(words), model.tags(words, plain_norm), atol=5e-3, rtol=5e-3)
                print(name, b, t, "ok", flush=True)


if __name__ == "__main__":
    main()
