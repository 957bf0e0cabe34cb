"""Synchronises a serving package with the trainer, which wraps its model for parallel training."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Expert(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Demand(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp = nn.Linear(20, d)
        self.module = Expert(d)
        self.tail = Expert(d)
        self.head = nn.Linear(d, 16)

    def forward(self, x):
        return self.head(self.tail(self.module(torch.tanh(self.inp(x)))))


def unwrap(state):
    """Removes the prefix that data-parallel training adds."""
    return {name.replace("module.", ""): value for name, value in state.items()}


def main():
    torch.manual_seed(20)
    model = Demand().eval()
    package = os.path.join(tempfile.mkdtemp(), "demand.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(4, 20),), dynamic_shapes=({0: Dim("n", min=1, max=256)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        x = torch.randn(9, 20)
        torch.testing.assert_close(runner(x), model(x), atol=1e-4, rtol=1e-4)
        print("day 0 agrees", flush=True)
        known = set(runner.get_constant_fqns())
        for day in (1, 2):
            for value in model.parameters():
                value.add_(0.2 * torch.randn_like(value))
            wrapped = {f"module.{name}": value for name, value in model.state_dict().items()}
            update = {name: value for name, value in unwrap(wrapped).items() if name in known}
            runner.load_constants(update, check_full_update=False)
            torch.testing.assert_close(runner(x), model(x), atol=1e-4, rtol=1e-4)
            print("day", day, "agrees", flush=True)


if __name__ == "__main__":
    main()
