"""Image statistics with a kernel whose tile size follows the sensor."""

import os
import tempfile

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn
from torch.export import Dim
from torch.library import triton_op, wrap_triton

DEVICE, TILE = "cuda", 48


@triton.jit
def tile_kernel(x_ptr, out_ptr, columns, TILE: tl.constexpr):
    row = tl.program_id(0)
    tile = tl.program_id(1)
    col = tile * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + row * columns + col, mask=col < columns, other=0.0)
    tl.store(out_ptr + row * tl.num_programs(1) + tile, tl.sum(x, 0))


@triton_op("cam::tiles", mutates_args={})
def tiles(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    count = columns // TILE
    out = torch.empty(rows, count, device=x.device)
    wrap_triton(tile_kernel)[(rows, count)](x, out, columns, TILE=TILE)
    return out


class Exposure(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(20, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 1)

    def forward(self, lines):
        h = torch.tanh(self.inp(tiles(lines) / TILE))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h).squeeze(-1)


def main():
    torch.manual_seed(16)
    with torch.device(DEVICE):
        model = Exposure().eval()
    lines = torch.rand(64, 20 * TILE, device=DEVICE)
    package = os.path.join(tempfile.mkdtemp(), "exposure.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (lines,), dynamic_shapes=({0: Dim("n", min=2, max=4096)},))
        print("exported", flush=True)
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    print("exposure", runner(lines).mean().item(), flush=True)


if __name__ == "__main__":
    main()
