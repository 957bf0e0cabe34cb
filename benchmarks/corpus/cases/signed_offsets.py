"""Looks up the last days of a year by offsets that count from its end."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Season(nn.Module):
    def __init__(self, days=365, d=12):
        super().__init__()
        self.register_buffer("sun", torch.rand(days, 3))
        self.out = nn.Linear(3, d)

    def forward(self, offsets, far):
        return self.out(self.sun[offsets] + self.sun[far.clamp(0, 364)])


def main():
    torch.manual_seed(53)
    model = Season().eval()
    package = os.path.join(tempfile.mkdtemp(), "season.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=400)
        sample = (torch.randint(0, 365, (6,)), torch.randint(0, 365, (6,)))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        season = torch._inductor.aoti_load_package(package)
        for low, high in ((0, 364), (-365, -1), (-30, 40)):
            offsets, far = torch.randint(low, high, (50,)), torch.randint(-2000, 9000, (50,))
            torch.testing.assert_close(season(offsets, far), model(offsets, far), atol=1e-4, rtol=1e-3)
            print("offsets", low, high, "agree", flush=True)
    print("year over", flush=True)


if __name__ == "__main__":
    main()
