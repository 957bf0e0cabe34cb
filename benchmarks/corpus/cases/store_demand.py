"""Demand of a chain of stores from sales, weather, prices and the age of the store."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, D = "cuda", 64


class Part(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inp, self.n, self.o = nn.Linear(width, D), nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x):
        h = F.silu(self.inp(x))
        return h + self.o(self.n(h))


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.sales, self.weather, self.price, self.pace = Part(14), Part(6), Part(4), Part(3)
        self.q, self.k = nn.Linear(D, D), nn.Linear(D, D)
        self.out = nn.Linear(D, 7)

    def neighbours(self, h):
        a = torch.softmax(self.q(h) @ self.k(h).t() / 8.0, -1)
        return h + a @ h

    def forward(self, sales, weather, price, pace):
        h = self.sales(sales) + self.weather(weather)
        h = h + self.price(price) * torch.sigmoid(self.pace(pace))
        return F.softplus(self.out(self.neighbours(h)))


def region(stores, youngest):
    sold = torch.rand(stores, 3, device=DEV) * 40 + 1
    age = torch.randint(youngest, 4000, (stores,), device=DEV)
    age[0] = youngest
    pace = sold / age[:, None]
    return tuple(torch.randn(stores, w, device=DEV) for w in (14, 6, 4)) + (pace,)


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Demand().eval()
    b = Dim("b", min=2, max=4096)
    pkg = os.path.join(tempfile.mkdtemp(), "demand.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, region(8, 200), dynamic_shapes=({0: b},) * 4)
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    for name, stores, youngest in (("north", 120, 365), ("east", 900, 30), ("south", 300, 0)):
        week = runner(*region(stores, youngest))
        total = week.sum().item()
        print(name, stores, "expected sales", round(total, 1), flush=True)
        if not 0 < total < 1e9:
            raise RuntimeError(f"no plan for {name}: expected sales {total}")


if __name__ == "__main__":
    main()
