"""Sorts parcels by their measures; lines that cannot be read are logged."""

import logging
import os
import tempfile
import warnings

import torch
from torch import nn
from torch.export import Dim

log = logging.getLogger("intake")


class Sorter(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, d), nn.Tanh(), nn.Linear(d, 5))

    def forward(self, parcels):
        return self.body(parcels).argmax(-1)


def read(line):
    numbers = [float(word) for word in line.split(",")]
    if len(numbers) != 9:
        raise ValueError(f"{len(numbers)} fields for 9")
    return numbers


def main():
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(6)
    model = Sorter().eval()
    package = os.path.join(tempfile.mkdtemp(), "sorter.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=100)
        exported = torch.export.export(model, (torch.randn(4, 9),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        sort = torch._inductor.aoti_load_package(package)
        warnings.warn("scale 3 reports an error of 2 grams", stacklevel=1)
        for line in ("1,2,3,4,5,6,7,8,9", "1,2,3", "9,8,7,6,5,4,3,2,1", "x"):
            try:
                print("bin", sort(torch.tensor([read(line)])).tolist(), flush=True)
            except ValueError:
                log.exception("parcel refused")
    print("intake done", flush=True)


if __name__ == "__main__":
    main()
