"""Toll road: prices by traffic; new weights come each night, and an operator keeps an audit value."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


@torch.library.custom_op("toll::price", mutates_args=())
def price(demand: torch.Tensor, base: float) -> list[torch.Tensor]:
    return [demand.clamp(min=0.0) + base, demand.sum(-1)]


@price.register_fake
def _(demand, base):
    return [torch.empty_like(demand), torch.empty_like(demand)]


class Toll(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.enter = nn.Linear(9, d)
        self.leave = nn.Linear(d, 5)

    def forward(self, traffic):
        demand = self.leave(F.gelu(self.enter(traffic)))
        prices, _audit = torch.ops.toll.price(demand, 1.5)
        return prices * 0.5


def nightly(runner, weights):
    fresh = {name: value for name, value in weights.items() if name.startswith("enter")}
    runner.load_constants(fresh, check_full_update=False)


def main():
    torch.manual_seed(8)
    model = Toll().eval()
    package = os.path.join(tempfile.mkdtemp(), "toll.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=128)
        exported = torch.export.export(model, (torch.rand(6, 9),), dynamic_shapes=({0: n},))
        options = {"always_keep_tensor_constants": True}
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=options)
        runner = torch._inductor.aoti_load_package(package)
        for night in range(3):
            traffic = torch.rand(10, 9)
            torch.testing.assert_close(runner(traffic), model(traffic), atol=1e-4, rtol=1e-3)
            print("day", night, "priced", flush=True)
            if night == 1:
                model.load_state_dict(Toll().state_dict())
                nightly(runner, model.state_dict())
    print("road closed", flush=True)


if __name__ == "__main__":
    main()
