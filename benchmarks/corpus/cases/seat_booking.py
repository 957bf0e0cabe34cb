"""Demand per seat row: bookings are added up per row before the model prices them."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

ROWS = 40


class Pricing(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.weight = nn.Linear(4, d)
        self.row = nn.Parameter(torch.randn(ROWS, d))
        self.body = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.out = nn.Linear(d, 1)

    def forward(self, bookings, rows):
        value = torch.tanh(self.weight(bookings))
        demand = torch.zeros_like(self.row)
        demand = demand.scatter_reduce(
            0, rows[:, None].expand(-1, value.shape[1]), value, "prod", include_self=False
        )
        h = demand + self.row
        return F.softplus(self.out(h + self.body(h))).squeeze(-1)


class Hall:
    def __init__(self, rows, first):
        self.rows, self.first = rows, first

    def bookings(self, count):
        generator = torch.Generator().manual_seed(count)
        printed = torch.randint(self.first, self.first + self.rows, (count,), generator=generator)
        return torch.rand(count, 4, generator=generator), printed


def by_hand(model, bookings, rows):
    """Only rows of the plan count."""
    inside = rows < ROWS
    return model(bookings[inside], rows[inside])


def main():
    torch.manual_seed(12)
    model = Pricing().eval()
    package = os.path.join(tempfile.mkdtemp(), "pricing.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=5000)
        sample = Hall(ROWS, 0).bookings(50)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for name, hall, count in (
            ("old hall", Hall(40, 0), 300),
            ("studio", Hall(18, 0), 75),
            ("opera", Hall(40, 1), 400),
        ):
            request = hall.bookings(count)
            torch.testing.assert_close(runner(*request), by_hand(model, *request), atol=1e-4, rtol=1e-4)
            print(name, "priced", flush=True)


if __name__ == "__main__":
    main()
