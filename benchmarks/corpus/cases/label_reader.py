"""Reads parcel labels; a second camera with a larger sensor was installed in hall B."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Reader(nn.Module):
    def __init__(self, classes=36):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1, 32, 32) + 0.5)
        self.shift = nn.Parameter(torch.zeros(1, 32, 32))
        self.mix = nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32))
        self.rows = nn.Linear(32, 48)
        self.head = nn.Linear(48, classes)

    def forward(self, image):
        x = torch.tanh(image * self.scale + self.shift)
        x = x + self.mix(x)
        return F.log_softmax(self.head(F.relu(self.rows(x)).amax(1)), -1)


def crops(camera, count):
    """Label crops as the camera delivers them."""
    side = {"hall A": 32, "hall B": 40}[camera]
    return torch.rand(count, side, side, generator=torch.Generator().manual_seed(count))


def reference(model, images):
    """The desktop tool scales every crop to the size of the network before reading it."""
    if images.shape[-1] != 32:
        images = F.interpolate(images[:, None], size=(32, 32), mode="bilinear")[:, 0]
    return model(images)


def main():
    torch.manual_seed(3)
    model = Reader().eval()
    package = os.path.join(tempfile.mkdtemp(), "reader.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.rand(4, 32, 32),), dynamic_shapes=({0: Dim("n", min=1, max=64)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for camera, count in (("hall A", 3), ("hall A", 20), ("hall B", 6)):
            images = crops(camera, count)
            torch.testing.assert_close(runner(images), reference(model, images), atol=1e-4, rtol=1e-4)
            print(camera, count, "read", flush=True)


if __name__ == "__main__":
    main()
