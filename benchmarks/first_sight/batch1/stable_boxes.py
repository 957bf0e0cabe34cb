"""Horse stable: unrest in each box from its sensors, normalised as it was during training."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Boxes(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(9, d), nn.BatchNorm1d(d), nn.Linear(d, 1)

    def forward(self, boxes):
        return self.out(torch.relu(self.norm(self.inp(boxes)))).squeeze(-1)


def main():
    torch.manual_seed(104)
    model = Boxes()
    for _ in range(20):
        with torch.no_grad():
            model(torch.randn(64, 9) * 2.0 + 1.0)
    package = os.path.join(tempfile.mkdtemp(), "boxes.pt2")
    frozen = Boxes()
    frozen.load_state_dict(model.state_dict())
    frozen.eval()
    with torch.no_grad():
        n = Dim("n", min=2, max=256)
        exported = torch.export.export(model, (torch.randn(16, 9),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for night, shift in (("monday", 1.0), ("storm", 6.0)):
            boxes = torch.randn(24, 9) * 2.0 + shift
            torch.testing.assert_close(runner(boxes), frozen(boxes), atol=0.5, rtol=0.1)
            print(night, "quiet", flush=True)


if __name__ == "__main__":
    main()
