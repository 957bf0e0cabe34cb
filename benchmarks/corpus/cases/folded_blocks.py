"""Radar return classifier that folds pulses into groups before encoding them."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(9)


class Fold(nn.Module):
    def __init__(self, bins=24, d=48):
        super().__init__()
        self.inp, self.n, self.mid = nn.Linear(bins, d), nn.LayerNorm(d), nn.Linear(d, d)
        self.tail, self.head = nn.Linear(d, d), nn.Linear(d, 7)

    def forward(self, pulses):
        h = F.silu(self.inp(pulses))
        n = h.shape[1]
        if n % 4 == 0:
            h = h.unflatten(1, (n // 4, 4)).mean(2)
        else:
            h = self.tail(h)
        return self.head(self.n(h + F.gelu(self.mid(h)))).amax(1)


def main():
    model = Fold().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "fold.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (torch.randn(3, 64, 24),), dynamic_shapes=({1: Dim.AUTO},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    print("loaded", flush=True)
    with torch.no_grad():
        for pulses in (64, 128, 32, 90):
            x = torch.randn(3, pulses, 24, generator=torch.Generator().manual_seed(pulses))
            torch.testing.assert_close(runner(x), model(x), atol=1e-4, rtol=1e-4)
            print("sweep", pulses, "ok", flush=True)


if __name__ == "__main__":
    main()
