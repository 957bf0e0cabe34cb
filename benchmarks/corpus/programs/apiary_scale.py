"""Bee hives on scales: gains of each hive, smoothed over its neighbours."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Apiary(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp = nn.Linear(6, d)
        self.out = nn.Linear(d, 1)

    def forward(self, weights, present, distance):
        near = torch.exp(-distance) * present.unsqueeze(0)
        h = torch.tanh(self.inp(weights)) * present.unsqueeze(-1)
        mixed = (near.unsqueeze(-1) * h.unsqueeze(0)).sum(1) / near.sum(1, keepdim=True)
        return self.out(mixed).squeeze(-1)


def distances(hives):
    apart = (hives[:, None] - hives[None]).abs().sum(-1)
    return apart.t()


def main():
    torch.manual_seed(6)
    model = Apiary().eval()
    package = os.path.join(tempfile.mkdtemp(), "apiary.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=64)
        sample = (torch.rand(5, 6), torch.ones(5), torch.rand(5, 5))
        shapes = ({0: n}, {0: n}, {0: n, 1: n})
        exported = torch.export.export(model, sample, dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for day, count in (("monday", 8), ("tuesday", 11), ("wednesday", 9)):
            weights, present = torch.rand(count, 6), torch.ones(count)
            if day == "wednesday":
                present[4] = 0.0  # the hive is being moved
                weights[4] = float("nan")
            gains = runner(weights, present, distances(torch.rand(count, 2)))
            if not gains.isfinite().all():
                raise ValueError(f"{day}: gains are not finite: {gains.tolist()}")
            print(day, "gain", round(gains.mean().item(), 4), flush=True)
    print("week weighed", flush=True)


if __name__ == "__main__":
    main()
