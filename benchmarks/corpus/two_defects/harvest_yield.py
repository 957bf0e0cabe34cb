"""Farm planner: yield of fields by soil, with a bonus for irrigation that the user chooses."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

SOILS = ["clay", "loam", "sand", "peat", "chalk", "silt"]


class Yield(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.soil = nn.Embedding(6, d)
        self.inp = nn.Linear(5, d)
        self.out = nn.Linear(d, 1)

    def forward(self, weather, soil, bonus):
        h = F.silu(self.inp(weather) + self.soil(soil))
        return self.out(h).squeeze(-1) * bonus


def codes(names):
    return torch.tensor([SOILS.index(name) if name in SOILS else len(SOILS) for name in names])


def main():
    torch.manual_seed(11)
    model = Yield().eval()
    package = os.path.join(tempfile.mkdtemp(), "yield.pt2")
    farms = (
        ("north", ["clay", "loam"], 1.0),
        ("south", ["sand", "peat", "silt"], 1.0),
        ("coast", ["sand", "marsh", "chalk"], 1.4),
    )
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        sample = (torch.rand(4, 5), torch.tensor([0, 1, 2, 3]), 1.0)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}, None))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for farm, soils, bonus in farms:
            weather, soil = torch.rand(len(soils), 5), codes(soils)
            got = runner(weather, soil, bonus)
            torch.testing.assert_close(got, model(weather, soil, bonus), atol=1e-4, rtol=1e-3)
            print(farm, "planned", flush=True)
    print("season planned", flush=True)


if __name__ == "__main__":
    main()
