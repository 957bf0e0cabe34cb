"""Churn scores for customers: a nightly batch, then single look-ups from the support desk."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Scorer(nn.Module):
    def __init__(self, features=24, width=64):
        super().__init__()
        self.inp = nn.Linear(features, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, 1)

    def forward(self, profile):
        h = F.silu(self.inp(profile))
        for norm, mix in zip(self.norms, self.mix):
            h = h + F.gelu(mix(norm(h)))
        return torch.sigmoid(self.head(h)).squeeze(-1)


class Customers:
    def __init__(self, count, features):
        self.rows = torch.randn(count, features)

    def night(self, size):
        for start in range(0, len(self.rows), size):
            yield self.rows[start : start + size]

    def look_up(self, number):
        return self.rows[number]


def main():
    torch.manual_seed(0)
    model = Scorer().eval()
    customers = Customers(300, 24)
    package = os.path.join(tempfile.mkdtemp(), "churn.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(16, 24),), dynamic_shapes=({0: Dim("rows", min=1, max=4096)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    score = torch._inductor.aoti_load_package(package)
    for part in customers.night(100):
        print("night", tuple(score(part).shape), flush=True)
    for number in (5, 77):
        print("customer", number, score(customers.look_up(number)).tolist(), flush=True)


if __name__ == "__main__":
    main()
