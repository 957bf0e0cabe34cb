"""Aggregates node features per region with a scatter, then scores the regions."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Regions(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(20, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 5)

    def forward(self, nodes, region, area):
        h = torch.tanh(self.inp(nodes))
        total = h.new_zeros(area.shape[0], h.shape[1])
        total = total.scatter_reduce(0, region[:, None].expand_as(h), h, "amax", include_self=False)
        total = total * area[:, None]
        for layer in self.layers:
            total = total + F.gelu(layer(self.norm(total)))
        return self.out(total)


class Atlas:
    """Region numbers are codes of the statistical office; merged regions keep their old codes for a year."""

    def __init__(self, codes):
        self.codes = codes

    def number(self, count):
        return torch.randint(0, self.codes, (count,), device=DEVICE)


def main():
    torch.manual_seed(7)
    with torch.device(DEVICE):
        model = Regions().eval()
    package = os.path.join(tempfile.mkdtemp(), "regions.pt2")
    n, r = Dim("n", min=2, max=1_000_000), Dim("r", min=2, max=10_000)
    with torch.no_grad():
        sample = (torch.randn(50, 20), torch.randint(0, 9, (50,)), torch.rand(9))
        sample = tuple(x.to(DEVICE) for x in sample)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}, {0: r}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for year, regions, codes in ((2023, 400, 400), (2024, 380, 380), (2025, 351, 380)):
        region = Atlas(codes).number(20_000)
        y = runner(torch.randn(20_000, 20, device=DEVICE), region, torch.rand(regions, device=DEVICE))
        torch.cuda.synchronize()
        print(year, regions, y.argmax(-1).bincount(minlength=5).tolist(), flush=True)


if __name__ == "__main__":
    main()
