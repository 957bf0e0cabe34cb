"""One package for the laboratory and for the gate, loaded with the options of each place."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim

SETTINGS = {"lab": {}, "gate": {"device_index": 0}}


class Face(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, d), nn.ReLU(), nn.Linear(d, 16))

    def forward(self, x):
        return torch.nn.functional.normalize(self.body(x), dim=-1)


def main():
    torch.manual_seed(8)
    package = os.path.join(tempfile.mkdtemp(), "face.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(Face().eval(), (torch.randn(4, 128),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        for place, options in SETTINGS.items():
            runner = torch._inductor.aoti_load_package(package, **options)
            print(place, tuple(runner(torch.randn(3, 128)).shape), flush=True)


if __name__ == "__main__":
    main()
