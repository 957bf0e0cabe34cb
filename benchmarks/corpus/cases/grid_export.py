"""Weather grid network, exported for grids of any height."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Grid(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp = nn.Linear(6, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(20, d))
        self.out = nn.Linear(d, 3)

    def forward(self, cells):
        h = F.silu(self.inp(cells)) + self.bias
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h)


def main():
    torch.manual_seed(28)
    model = Grid().eval()
    cells = torch.randn(4, 20, 6)
    package = os.path.join(tempfile.mkdtemp(), "grid.pt2")
    with torch.no_grad():
        print("eager", tuple(model(cells).shape), flush=True)
        days, height = Dim("days", min=1, max=30), Dim("height", min=2, max=400)
        exported = torch.export.export(model, (cells,), dynamic_shapes=({0: days, 1: height},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    print("compiled", tuple(runner(cells).shape), flush=True)


if __name__ == "__main__":
    main()
