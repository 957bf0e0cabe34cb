"""Tide gauge: the model is served on stretches of one long recording, wherever they begin."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, D = "cuda", 64


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.out = nn.Linear(D, 2)

    def forward(self, gauge):
        gauge = torch.tanh(gauge * 0.3)
        h = F.silu(self.inp(gauge))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h) + gauge[:, :2]


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Tide().eval()
        record = torch.randn(50_000, 3).cumsum(0) * 0.05
    pkg = os.path.join(tempfile.mkdtemp(), "tide.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (record[:64],), dynamic_shapes=({0: Dim("n", min=2, max=50_000)},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        for first, length in ((0, 100), (400, 1000), (401, 1000), (31_337, 777)):
            stretch = record[first : first + length]
            torch.testing.assert_close(runner(stretch), model(stretch), atol=5e-3, rtol=5e-3)
            print("stretch", first, length, "address", stretch.data_ptr() % 16, flush=True)
    print("windows finished", flush=True)


if __name__ == "__main__":
    main()
