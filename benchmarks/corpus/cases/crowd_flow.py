"""Distances between all people on a square, on market days and at the festival."""

import os
import resource
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Crowd(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.place = nn.Linear(2, d)

    def forward(self, people):
        h = self.place(people)
        gaps = (h.unsqueeze(0) - h.unsqueeze(1)).square().sum(-1)
        return torch.exp(-gaps).sort(-1).values[:, -3:].sum(-1)


def main():
    torch.manual_seed(11)
    package = os.path.join(tempfile.mkdtemp(), "crowd.pt2")
    with torch.no_grad():
        n = Dim("n", min=4, max=32_000)
        exported = torch.export.export(Crowd().eval(), (torch.randn(10, 2),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        flow = torch._inductor.aoti_load_package(package)
        print("market", float(flow(torch.randn(300, 2)).mean()) > 0, flush=True)
        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), resource.RLIM_INFINITY))
        people = torch.randn(30_000, 2)
        print("festival", float(flow(people).mean()) > 0, flush=True)


if __name__ == "__main__":
    main()
