"""The three best of thirty, with their places."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Top(nn.Module):
    def __init__(self, d=30):
        super().__init__()
        self.out = nn.Linear(12, d)

    def forward(self, x):
        return self.out(x).topk(3, -1)


def main():
    torch.manual_seed(25)
    package = os.path.join(tempfile.mkdtemp(), "top.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(Top().eval(), (torch.randn(4, 12),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        best = torch._inductor.aoti_load_package(package)
        first = best(torch.randn(5, 12))
        print(tuple(first[0].shape), flush=True)
        print("best", best(torch.randn(5, 12))[0].tolist(), flush=True)


if __name__ == "__main__":
    main()
