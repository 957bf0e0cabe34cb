"""Book-keeping: checks the quarters of a ledger; rates come from a statistics module."""

import os
import statistics
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Ledger(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(7, d)
        self.out = nn.Linear(d, 3)

    def forward(self, rows, rates):
        booked = rows[:, 1:] * rates.unsqueeze(-1)
        return self.out(F.silu(self.inp(booked)))


def quarter(number):
    """The rows, of which column 0 is reserved for the auditor, and one rate for each."""
    g = torch.Generator().manual_seed(number)
    rows = torch.rand(12, 8, generator=g)
    rows[:, 0] = float("nan")
    if number < 3:
        return rows, torch.rand(12, generator=g) + 0.5
    history = [[1.0 + 0.01 * i, 1.2, 0.9] for i in range(12)]
    return rows, torch.tensor([statistics.fmean(rates) for rates in history], dtype=torch.float64)


def main():
    torch.manual_seed(5)
    model = Ledger().eval()
    package = os.path.join(tempfile.mkdtemp(), "ledger.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=256)
        sample = (torch.rand(6, 8), torch.rand(6))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for number in (1, 2, 3):
            rows, rates = quarter(number)
            torch.testing.assert_close(runner(rows, rates), model(rows, rates.float()), atol=1e-4, rtol=1e-3)
            print("quarter", number, "agrees", flush=True)
    print("books closed", flush=True)


if __name__ == "__main__":
    main()
