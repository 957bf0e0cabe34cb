"""Ranking network with an early exit: sure answers skip the second stage."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Stage(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class EarlyExit(nn.Module):
    def __init__(self, d=32, classes=7):
        super().__init__()
        self.inp = nn.Linear(10, d)
        self.first, self.second = Stage(d), Stage(d)
        self.quick, self.full = nn.Linear(d, classes), nn.Linear(d, classes)

    def forward(self, x):
        h = self.first(torch.tanh(self.inp(x)))
        quick = self.quick(h).softmax(-1)
        unsure = (quick.amax(-1) < 0.6).nonzero().squeeze(-1)
        if unsure.shape[0] > 3:
            refined = self.full(self.second(h[unsure])).softmax(-1)
            quick = quick.index_copy(0, unsure, refined)
        return quick


def main():
    torch.manual_seed(27)
    model = EarlyExit().eval()
    x = torch.randn(16, 10)
    package = os.path.join(tempfile.mkdtemp(), "exit.pt2")
    with torch.no_grad():
        print("eager", tuple(model(x).shape), flush=True)
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n", min=2, max=256)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    print("compiled", tuple(runner(x).shape), flush=True)


if __name__ == "__main__":
    main()
