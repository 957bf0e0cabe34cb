"""Seed sorter: purity of a sample; the package comes straight out of the training script."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Sorter(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp, self.out = nn.Linear(14, d), nn.Linear(d, 3)

    def forward(self, grains):
        h = F.dropout(F.gelu(self.inp(grains)), 0.2, self.training)
        return self.out(h)


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(16, 14)).pow(2).mean().backward()
        optimizer.step()


def release(model, folder):
    package = os.path.join(folder, "sorter.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=256)
        exported = torch.export.export(model, (torch.rand(4, 14),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    return torch._inductor.aoti_load_package(package)


def main():
    torch.manual_seed(103)
    model = Sorter()
    train(model)
    runner = release(model, tempfile.mkdtemp())
    print("released", flush=True)
    model.eval()
    with torch.no_grad():
        for lot in ("rye", "oats"):
            grains = torch.rand(30, 14)
            torch.testing.assert_close(runner(grains), model(grains), atol=1e-3, rtol=1e-3)
            print(lot, "sorted", flush=True)


if __name__ == "__main__":
    main()
