"""Level meters for a mixing desk; a shadow copy of the model checks what the package says."""

import os
import tempfile

import torch
import torch.nn as nn
from torch.export import Dim


class Meter(nn.Module):
    def __init__(self, bands=12):
        super().__init__()
        self.bands = nn.Linear(bands, bands)
        self.show = nn.Linear(bands, 3)

    def forward(self, levels):
        levels -= levels.mean(-1, keepdim=True)
        levels /= levels.std(-1, keepdim=True) + 0.1
        return self.show(torch.tanh(self.bands(levels)))


class Shadow:
    """Asks package and model, and counts disagreements."""

    def __init__(self, package, model):
        self.package, self.model = package, model
        self.asked = self.differ = 0

    def __call__(self, levels):
        served = self.package(levels)
        self.asked += 1
        self.differ += not torch.allclose(served, self.model(levels), atol=1e-3)
        return served


def main():
    torch.manual_seed(83)
    model = Meter().eval()
    n = Dim("n", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(model, (torch.rand(4, 12),), dynamic_shapes=({0: n},))
        path = os.path.join(tempfile.mkdtemp(), "meter.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        meter = Shadow(torch._inductor.aoti_load_package(path), model)
        for song in range(3):
            meter(torch.rand(8, 12) * 30 + 50)
    print(f"{meter.differ} of {meter.asked} answers differ from the model", flush=True)
    if meter.differ:
        raise RuntimeError("the package is not the model")


if __name__ == "__main__":
    main()
