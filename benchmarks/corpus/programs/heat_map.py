"""Draws heat maps of scores; the plotting helper wants arrays of the host."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Heat(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.inp = nn.Linear(12, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 1)

    def forward(self, cells):
        h = F.gelu(self.inp(cells))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return torch.sigmoid(self.out(h)).squeeze(-1)


def draw(scores, side, smooth):
    """A map of characters."""
    grid = scores.reshape(side, side)
    if smooth:
        grid = F.avg_pool2d(grid[None, None], 3, 1, 1)[0, 0]
    else:
        grid = grid.cpu()
    shades = (grid.numpy() * 4).astype(int)
    return "\n".join("".join(" .:#@"[shade] for shade in row) for row in shades)


def main():
    torch.manual_seed(26)
    with torch.device(DEVICE):
        model = Heat().eval()
    package = os.path.join(tempfile.mkdtemp(), "heat.pt2")
    with torch.no_grad():
        sample = (torch.randn(16, 12, device=DEVICE),)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: Dim("n", min=2, max=4096)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for town, side, smooth in (("old", 6, False), ("new", 9, False), ("harbour", 8, True)):
            scores = runner(torch.randn(side * side, 12, device=DEVICE))
            print(town, draw(scores, side, smooth), sep="\n", flush=True)


if __name__ == "__main__":
    main()
