"""Ragged basket encoder: items of all baskets are packed, their slots come from running totals."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(19)
CAPACITY = 256


class Baskets(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.slot = nn.Embedding(CAPACITY, d)
        self.item, self.mid, self.head = nn.Linear(20, d), nn.Linear(d, d), nn.Linear(d, 4)
        self.norm = nn.LayerNorm(d)

    def forward(self, counts, summary):
        ends = counts.cumsum(0)
        starts = ends - counts
        h = self.slot(starts) + self.slot(ends - 1) + F.relu(self.item(summary))
        return self.head(self.norm(h + F.gelu(self.mid(h))))


def orders(n, seed, most=6):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(1, most, (n,), generator=g), torch.randn(n, 20, generator=g)


def main():
    model = Baskets().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "baskets.pt2")
    b = Dim("b", min=2, max=200)
    with torch.no_grad():
        ep = torch.export.export(model, orders(16, 0), dynamic_shapes=({0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    print("loaded", flush=True)
    with torch.no_grad():
        for hour, (n, most) in enumerate([(16, 6), (60, 5), (30, 8), (48, 14)]):
            batch = orders(n, 100 + hour, most)
            print("hour", hour, tuple(runner(*batch).shape), flush=True)


if __name__ == "__main__":
    main()
