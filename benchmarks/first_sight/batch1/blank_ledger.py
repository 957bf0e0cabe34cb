"""Savings bank: an operator writes balances of the accounts that moved into a fresh ledger."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


@torch.library.custom_op("bank::book", mutates_args=())
def book(amounts: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    ledger = torch.empty_like(amounts)
    ledger[moved] = amounts[moved] * 1.02
    return ledger


@book.register_fake
def _(amounts, moved):
    return torch.empty_like(amounts)


class Bank(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp, self.out = nn.Linear(64, d), nn.Linear(d, 2)

    def forward(self, amounts, moved):
        return self.out(torch.tanh(self.inp(torch.ops.bank.book(amounts, moved))))


def other_work(rows):
    """The rest of the service uses memory, too."""
    scratch = [torch.full((rows, 64), 3.0e4) for _ in range(8)]
    return sum(float(one[0, 0]) for one in scratch)


def main():
    torch.manual_seed(108)
    model = Bank().eval()
    package = os.path.join(tempfile.mkdtemp(), "bank.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=4096)
        sample = (torch.rand(6, 64), torch.ones(6, dtype=torch.bool))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for day, resting in (("monday", 0), ("tuesday", 0), ("holiday", 30)):
            amounts, moved = torch.rand(100, 64), torch.ones(100, dtype=torch.bool)
            moved[:resting] = False
            wanted = model.out(torch.tanh(model.inp(torch.where(moved[:, None], amounts * 1.02, 0.0))))
            other_work(100)
            torch.testing.assert_close(runner(amounts, moved), wanted, atol=1e-3, rtol=1e-3)
            print(day, "booked", flush=True)


if __name__ == "__main__":
    main()
