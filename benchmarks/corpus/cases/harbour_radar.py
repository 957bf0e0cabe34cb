"""Radar echoes of a harbour are put on a grid, which is then classified cell by cell."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, REACH, SIDE, C = "cuda", 50.0, 64, 32


class HarbourGrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.echo = nn.Linear(5, C)
        self.le = nn.ModuleList(nn.Linear(C, C) for _ in range(2))
        self.ne = nn.ModuleList(nn.LayerNorm(C) for _ in range(2))
        self.lg = nn.ModuleList(nn.Linear(C, C) for _ in range(2))
        self.ng = nn.ModuleList(nn.LayerNorm(C) for _ in range(2))
        self.out = nn.Linear(C, 4)

    def describe(self, echoes):
        h = F.silu(self.echo(echoes))
        for layer, n in zip(self.le, self.ne):
            h = h + F.gelu(layer(n(h)))
        return h

    def locate(self, xy):
        step = 2 * REACH / SIDE
        cell = torch.floor((xy + REACH) / step).long()
        return cell[:, 1] * SIDE + cell[:, 0]

    def rasterise(self, h, cell):
        cell, order = torch.sort(cell, stable=True)
        grid = h.new_zeros(SIDE * SIDE, C)
        return grid.index_put((cell,), h[order], accumulate=True)

    def forward(self, xy, echoes):
        g = self.rasterise(self.describe(echoes), self.locate(xy))
        for layer, n in zip(self.lg, self.ng):
            g = g + F.gelu(layer(n(g)))
        return self.out(g).view(SIDE, SIDE, 4)


def sweep(n, spread):
    """Positions in metres around the mast; echoes from beyond the reach are reported at its border."""
    xy = (torch.randn(n, 2, device=DEV) * spread).clamp(-REACH, REACH)
    return xy, torch.randn(n, 5, device=DEV)


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = HarbourGrid().eval()
    n = Dim("n", min=16, max=200_000)
    pkg = os.path.join(tempfile.mkdtemp(), "harbour.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, sweep(500, 6.0), dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    for weather, count, spread in (("calm", 2000, 5.0), ("breeze", 8000, 8.0), ("storm", 20_000, 40.0)):
        classes = runner(*sweep(count, spread)).argmax(-1)
        torch.cuda.synchronize()
        print(weather, count, classes.flatten().bincount(minlength=4).tolist(), flush=True)


if __name__ == "__main__":
    main()
