"""Bearings are turned into sectors of a compass and looked up."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Compass(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.sector, self.out = nn.Embedding(36, d), nn.Linear(d, 2)

    def forward(self, east, north):
        angle = torch.atan2(east, north) % (2 * torch.pi)
        sector = (angle * (36 / (2 * torch.pi))).to(torch.int64)
        return self.out(self.sector(sector))


def main():
    torch.manual_seed(63)
    package = os.path.join(tempfile.mkdtemp(), "compass.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=256)
        sample = (torch.randn(6), torch.randn(6))
        exported = torch.export.export(Compass().eval(), sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for gap in (False, True):
            east, north = torch.randn(30), torch.randn(30)
            if gap:
                east[7] = float("nan")
            print("gap", gap, round(float(runner(east, north).sum()), 2), flush=True)


if __name__ == "__main__":
    main()
