"""Equilibrium prices from an iterative solver that is registered as an operator."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


@torch.library.custom_op("market::clear", mutates_args=())
def clear(demand: torch.Tensor, supply: torch.Tensor) -> torch.Tensor:
    """Prices at which both sides meet, to a thousandth."""
    price = torch.ones_like(demand)
    while True:
        excess = demand / price - supply * price
        if excess.abs().max() < 1e-3:
            return price
        price = price + 0.1 * excess


@clear.register_fake
def _(demand, supply):
    return torch.empty_like(demand)


class Market(nn.Module):
    def __init__(self, goods=12, d=32):
        super().__init__()
        self.demand, self.supply = nn.Linear(d, goods), nn.Linear(d, goods)
        self.inp = nn.Linear(9, d)
        self.out = nn.Linear(goods, 4)

    def forward(self, state):
        h = torch.tanh(self.inp(state))
        prices = clear(F.softplus(self.demand(h)) + 0.5, F.softplus(self.supply(h)) + 0.5)
        return self.out(prices.log())


def main():
    torch.manual_seed(30)
    model = Market().eval()
    package = os.path.join(tempfile.mkdtemp(), "market.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(4, 9),), dynamic_shapes=({0: Dim("n", min=1, max=64)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for day, sensors in (("monday", 1.0), ("tuesday", 1.5), ("wednesday", float("nan"))):
        state = torch.randn(6, 9)
        state[2, 4] *= sensors
        print(day, [round(v, 3) for v in runner(state)[0].tolist()], flush=True)
    print("week done", flush=True)


if __name__ == "__main__":
    main()
