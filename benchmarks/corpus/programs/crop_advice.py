"""Advice per field; the soil map is kept on the host because it is large."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Advice(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.weather, self.soil = nn.Linear(24, d), nn.Linear(10, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 8)

    def forward(self, weather, soil):
        h = F.silu(self.weather(weather)) * torch.sigmoid(self.soil(soil * 0.1))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h)


class SoilMap:
    """Rows that were asked for before are cached on the device."""

    def __init__(self, fields):
        self.rows = torch.rand(fields, 10)
        self.cached = {}

    def load(self, fields):
        for field in fields:
            self.cached[field] = self.rows[field].to(DEVICE)

    def get(self, fields):
        if all(field in self.cached for field in fields):
            return torch.stack([self.cached[field] for field in fields])
        return self.rows[fields]


def main():
    torch.manual_seed(1)
    with torch.device(DEVICE):
        model = Advice().eval()
    package = os.path.join(tempfile.mkdtemp(), "advice.pt2")
    n = Dim("n", min=2, max=512)
    with torch.no_grad():
        sample = (torch.randn(4, 24, device=DEVICE), torch.rand(4, 10, device=DEVICE))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    soil = SoilMap(1000)
    soil.load(range(100))
    for farm, fields in (("hill", [4, 5, 6]), ("valley", list(range(40, 90))), ("lake", [97, 98, 99, 100])):
        advice = runner(torch.randn(len(fields), 24, device=DEVICE), soil.get(fields))
        torch.cuda.synchronize()
        print(farm, advice.argmax(-1)[:4].tolist(), flush=True)


if __name__ == "__main__":
    main()
