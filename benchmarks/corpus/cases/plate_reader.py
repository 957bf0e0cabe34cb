"""Reads plates from camera images; the video path delivers channels last."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Plates(nn.Module):
    def __init__(self, side=24, classes=36):
        super().__init__()
        self.register_buffer("mean", torch.rand(3, side, side))
        self.mix = nn.Linear(side, 64)
        self.norm = nn.LayerNorm(64)
        self.out = nn.Linear(64, classes)

    def forward(self, images):
        h = torch.tanh((images - self.mean) * 2.0)
        h = self.norm(F.gelu(self.mix(h)))
        return F.log_softmax(self.out(h.amax((1, 2))), -1)


def still(count):
    return torch.rand(count, 3, 24, 24, device=DEVICE)


def video(count):
    """As the decoder writes it: height, width, colour."""
    return torch.rand(count, 24, 24, 3, device=DEVICE).permute(0, 3, 1, 2)


def main():
    torch.manual_seed(3)
    with torch.device(DEVICE):
        model = Plates().eval()
    package = os.path.join(tempfile.mkdtemp(), "plates.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (still(4),), dynamic_shapes=({0: Dim("n", min=2, max=256)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for source, images in (("gate", still(6)), ("yard", still(40)), ("road", video(12))):
            torch.testing.assert_close(runner(images), model(images), atol=2e-2, rtol=2e-2)
            print(source, len(images), "read", flush=True)


if __name__ == "__main__":
    main()
