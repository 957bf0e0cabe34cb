"""A night watch by two: the package, and beside it the model, whose level the guards may turn."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Alarm(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.level = 3.0
        self.body = nn.Sequential(nn.Linear(14, d), nn.GELU(), nn.Linear(d, 8))

    def forward(self, signal):
        return torch.sigmoid((self.body(signal).abs().sum(-1) - self.level) * 4)


def main():
    torch.manual_seed(14)
    model = Alarm().eval()
    package = os.path.join(tempfile.mkdtemp(), "alarm.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(model, (torch.randn(4, 14),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        alarm = torch._inductor.aoti_load_package(package)
        for night in range(3):
            if night == 2:
                model.level = 2.0
            signal = torch.randn(20, 14)
            torch.testing.assert_close(alarm(signal), model(signal), atol=1e-4, rtol=1e-3)
            print("night", night, "agrees", flush=True)


if __name__ == "__main__":
    main()
