"""Name embeddings: frequent names have a row of their own, the others share hashed rows."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEV, NAMES, BUCKETS, D = "cuda", 3000, 1 << 23, 128


@triton.jit
def name_rows(id_ptr, table_ptr, out_ptr, names, buckets, D: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, D)
    key = tl.load(id_ptr + i)
    row = key
    if key >= names:
        row = names + (key * 40503 + 977) % buckets
    tl.store(out_ptr + i * D + col, tl.load(table_ptr + row * D + col))


@triton.jit
def scale_rows(x_ptr, w_ptr, out_ptr, D: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, D)
    x = tl.load(x_ptr + i * D + col)
    norm = tl.rsqrt(tl.sum(x * x, 0) / D + 1e-5)
    tl.store(out_ptr + i * D + col, x * norm * tl.load(w_ptr + col))


@triton_op("names::rows", mutates_args={})
def rows(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    out = table.new_empty(ids.shape[0], D)
    wrap_triton(name_rows)[(ids.shape[0],)](ids, table, out, NAMES, BUCKETS, D=D)
    return out


@triton_op("names::scale", mutates_args={})
def scale(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(scale_rows)[(x.shape[0],)](x, w, out, D=D)
    return out


class NameModel(nn.Module):
    """`buckets` rows are shared by the names that are not frequent."""

    def __init__(self, buckets=BUCKETS):
        super().__init__()
        self.table = nn.Parameter(torch.randn(NAMES + buckets, D) * 0.1)
        self.w = nn.Parameter(torch.ones(D))
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.out = nn.Linear(D, 30)

    def forward(self, ids):
        h = scale(rows(ids, self.table), self.w)
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(scale(h, self.w))


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = NameModel(buckets=4096).eval()
        sample = torch.randint(0, NAMES, (64,))
    pkg = os.path.join(tempfile.mkdtemp(), "names.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (sample,), dynamic_shapes=({0: Dim("n", min=2, max=1_000_000)},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    for source, n, top in (
        ("register", 500, NAMES),
        ("survey", 20_000, NAMES),
        ("guest book", 20_000, 400_000),
    ):
        ids = torch.randint(0, top, (n,), device=DEV)
        y = runner(ids)
        torch.cuda.synchronize()
        print(source, n, y.argmax(-1).bincount(minlength=30)[:6].tolist(), flush=True)


if __name__ == "__main__":
    main()
