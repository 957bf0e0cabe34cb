"""Personalised ranker; user profiles are materialised lazily to keep the start-up small."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(27)


class Ranker(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.item, self.user, self.o = nn.Linear(24, d), nn.Linear(16, d), nn.Linear(d, 5)
        self.n = nn.LayerNorm(d)

    def forward(self, items, profile):
        h = F.relu(self.item(items)) + torch.tanh(self.user(profile))
        return self.o(self.n(h))


class Profiles:
    def __init__(self, n):
        with torch.device("meta"):
            self.rows = [torch.empty(16) for _ in range(n)]

    def materialise(self, ids):
        for i in ids:
            self.rows[i] = torch.randn(16, generator=torch.Generator().manual_seed(i))

    def batch(self, ids):
        return torch.stack([self.rows[i] for i in ids])


def main():
    model = Ranker().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "ranker.pt2")
    b = Dim("b", min=2, max=128)
    with torch.no_grad():
        ep = torch.export.export(
            model, (torch.randn(4, 24), torch.randn(4, 16)), dynamic_shapes=({0: b}, {0: b})
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    profiles = Profiles(500)
    profiles.materialise(range(100))
    print("ready", flush=True)
    with torch.no_grad():
        for ids in ([1, 2, 3], [40, 50, 60, 70], [300, 301, 302]):
            y = runner(torch.randn(len(ids), 24), profiles.batch(ids))
            print("ranked", ids, [round(v, 3) for v in y[0].tolist()], flush=True)


if __name__ == "__main__":
    main()
