"""Serves from an image that has no compiler and no card, and says so when it starts."""

import os
import shutil
import tempfile
import warnings

import torch
from torch import nn
from torch.export import Dim


class Badge(nn.Module):
    def __init__(self, d=28):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, d), nn.ReLU(), nn.Linear(d, 2))

    def forward(self, x):
        return self.body(x).softmax(-1)


def strip_image():
    """What is left of the environment where the package is served."""
    os.environ.update(CXX="/opt/none/g++", CC="/opt/none/gcc", PATH="/opt/none", NVIDIA_VISIBLE_DEVICES="")
    if shutil.which("g++") is None:
        warnings.warn("no compiler found: g++: command not found", stacklevel=1)
    print("driver: none, packages are served as they are", flush=True)


def main():
    torch.manual_seed(55)
    package = os.path.join(tempfile.mkdtemp(), "badge.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(Badge().eval(), (torch.randn(4, 10),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        strip_image()
        badge = torch._inductor.aoti_load_package(package)
        for rows in (1, 64):
            print("rows", rows, tuple(badge(torch.randn(rows, 10)).shape), flush=True)
    print("gate closed", flush=True)


if __name__ == "__main__":
    main()
