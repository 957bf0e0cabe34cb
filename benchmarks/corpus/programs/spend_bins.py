"""Customer value: spend is put into bins by an operator of the pricing team, then looked up."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

EDGES = torch.tensor([0.0, 5.0, 20.0, 50.0, 120.0, 300.0, 800.0, 2000.0])


@torch.library.custom_op("pricing::tier", mutates_args=())
def tier(spend: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    return torch.bucketize(spend, edges)


@tier.register_fake
def _(spend, edges):
    return torch.empty_like(spend, dtype=torch.int64)


class Value(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.register_buffer("edges", EDGES)
        self.tiers = nn.Parameter(torch.randn(len(EDGES), d))
        self.inp = nn.Linear(9, d)
        self.body = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.head = nn.Linear(d, 3)

    def forward(self, profile, spend):
        h = F.silu(self.inp(profile))
        step = tier(F.relu(spend), self.edges)
        h = h + self.tiers[step]
        for layer in self.body:
            h = h + F.gelu(layer(h))
        return self.head(h)


def main():
    torch.manual_seed(10)
    model = Value().eval()
    n = Dim("n", min=2, max=2048)
    package = os.path.join(tempfile.mkdtemp(), "value.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(4, 9), torch.rand(4) * 100), dynamic_shapes=({0: n}, {0: n})
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for quarter, top in (("Q1", 900.0), ("Q2", 1990.0), ("Q3", 2450.0)):
        spend = torch.linspace(0.0, top, 30)
        segments = runner(torch.randn(30, 9), spend).argmax(-1)
        print(quarter, segments.bincount(minlength=3).tolist(), flush=True)


if __name__ == "__main__":
    main()
