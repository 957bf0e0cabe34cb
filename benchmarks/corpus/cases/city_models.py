"""One package holds the models of several cities; the dispatcher loads the one it needs."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.package import load_package, package_aoti
from torch.export import Dim


class Taxi(nn.Module):
    def __init__(self, zones, d=32):
        super().__init__()
        self.zone = nn.Embedding(zones, d)
        self.mix = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.head = nn.Linear(d, 1)

    def forward(self, start, end):
        h = self.zone(start) - self.zone(end)
        return F.softplus(self.head(h + self.mix(h))).squeeze(-1)


ZONES = {"lyon": 40, "porto": 25}


def build(path):
    n = Dim("n", min=1, max=100)
    files = {}
    for city, zones in ZONES.items():
        model = Taxi(zones).eval()
        sample = (torch.randint(0, zones, (4,)), torch.randint(0, zones, (4,)))
        with torch.no_grad():
            exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
            files[city] = torch._inductor.aot_compile(
                exported.module(), sample, options={"aot_inductor.package": True}
            )
    package_aoti(path, files)


def main():
    torch.manual_seed(21)
    package = os.path.join(tempfile.mkdtemp(), "cities.pt2")
    build(package)
    print("built", sorted(ZONES), flush=True)
    for city in ("porto", "lyon", "Porto"):
        runner = load_package(package, city)
        start, end = torch.randint(0, 25, (4,)), torch.randint(0, 25, (4,))
        print(city, [round(v, 2) for v in runner(start, end).tolist()], flush=True)


if __name__ == "__main__":
    main()
