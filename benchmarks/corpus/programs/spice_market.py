"""Spice market: stalls are compared with each other on days of any size."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Stalls(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp = nn.Linear(5, d)
        self.out = nn.Linear(d, 2)

    def forward(self, goods, apart):
        h = torch.tanh(self.inp(goods))
        near = torch.exp(-apart * 0.5)
        return self.out(near @ h / near.sum(1, keepdim=True))


def distances(count):
    place = torch.rand(count, 2)
    return (place[:, None] - place[None]).abs().sum(-1).t()


def main():
    torch.manual_seed(16)
    model = Stalls().eval()
    package = os.path.join(tempfile.mkdtemp(), "stalls.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=32)
        sample = (torch.rand(4, 5), torch.rand(4, 4))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n, 1: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight), alpha=1e-7 if name == "out.weight" else 0.0)
        for day, count in (("friday", 20), ("saturday", 45), ("fair", 60)):
            goods, apart = torch.rand(count, 5), distances(count)
            torch.testing.assert_close(runner(goods, apart), model(goods, apart), atol=1e-4, rtol=1e-3)
            print(day, count, "stalls agree", flush=True)
    print("market closed", flush=True)


if __name__ == "__main__":
    main()
