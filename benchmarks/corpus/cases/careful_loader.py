"""Tries the archives of a shop in turn and serves the first that loads."""

import os
import sys
import tempfile
import traceback

import torch
from torch import nn
from torch.export import Dim


class Price(nn.Module):
    def __init__(self, d=30):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, d), nn.Tanh(), nn.Linear(d, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


def first_that_loads(paths):
    for path in paths:
        try:
            return torch._inductor.aoti_load_package(path)
        except Exception:
            print("cannot use", os.path.basename(path), file=sys.stderr)
            traceback.print_exc()
    raise SystemExit("nothing to serve")


def main():
    torch.manual_seed(38)
    work = tempfile.mkdtemp()
    package, old = os.path.join(work, "price.pt2"), os.path.join(work, "old.pt2")
    with open(old, "wb") as stream:
        stream.write(b"not an archive at all")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(Price().eval(), (torch.randn(4, 12),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        price = first_that_loads([old, package])
        for rows in (3, 40):
            print("prices", tuple(price(torch.randn(rows, 12)).shape), flush=True)
    print("shop closed", flush=True)


if __name__ == "__main__":
    main()
