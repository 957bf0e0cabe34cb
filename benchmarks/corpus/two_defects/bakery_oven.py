"""Bakery: heat of the ovens, averaged over the sensors that answer; training goes on at night."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim

DEV = "cuda"


class Oven(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(8, d)
        self.out = nn.Linear(d, 1)

    def forward(self, heat, answers):
        h = torch.tanh(self.inp(heat)) * answers.unsqueeze(-1)
        return self.out(h.sum(1) / answers.sum(1, keepdim=True).clamp(min=1.0))


def train_at_night(model, rate):
    with torch.enable_grad():
        model(torch.rand(8, 5, 8, device=DEV), torch.ones(8, 5, device=DEV)).pow(2).mean().backward()
    for weight in model.parameters():
        weight.data -= rate * weight.grad


def main():
    torch.manual_seed(37)
    with torch.device(DEV):
        model = Oven().eval()
        sample = (torch.rand(4, 5, 8), torch.ones(4, 5))
    package = os.path.join(tempfile.mkdtemp(), "oven.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=128)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        train_at_night(model, rate=1e-6)
        for day in ("monday", "tuesday", "wednesday"):
            heat, answers = torch.rand(30, 5, 8, device=DEV), torch.ones(30, 5, device=DEV)
            answers[3, 2] = 0.0
            if day == "wednesday":
                heat[3, 2] = float("nan")  # what the gateway sends for a silent sensor
            level = runner(heat, answers)
            if not level.isfinite().all():
                raise ValueError(f"{day}: the heat of an oven is not finite")
            agrees = torch.allclose(level, model(heat, answers), atol=1e-2)
            print(day, "served", agrees, flush=True)
    print("ovens off", flush=True)


if __name__ == "__main__":
    main()
