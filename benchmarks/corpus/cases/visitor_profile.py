"""Offer scoring for a shop: known customers have a profile, visitors share one."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, D = "cuda", 96


class OfferScore(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(20, D)
        self.np = nn.LayerNorm(D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(4))
        self.out = nn.Linear(D, 12)

    def forward(self, click, profile):
        h = F.silu(self.inp(click)) * torch.sigmoid(self.np(profile)) + 0.1 * profile
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h)


class Profiles:
    def __init__(self, customers):
        self.table = torch.randn(customers, D, device=DEV)
        self.visitor = self.table.mean(0)

    def known(self, ids):
        return self.table[ids]

    def unknown(self, n):
        return self.visitor.expand(n, D)


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = OfferScore().eval()
        sample = (torch.randn(8, 20), torch.randn(8, D))
    b = Dim("b", min=2, max=4096)
    pkg = os.path.join(tempfile.mkdtemp(), "offers.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, sample, dynamic_shapes=({0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        profiles = Profiles(5000)
        for group, n in (("gold", 64), ("regular", 900), ("visitors", 300)):
            click = torch.randn(n, 20, device=DEV)
            if group == "visitors":
                profile = profiles.unknown(n)
            else:
                profile = profiles.known(torch.randint(0, 5000, (n,), device=DEV))
            y = runner(click, profile)
            torch.testing.assert_close(y, model(click, profile), atol=1e-2, rtol=1e-2)
            print(group, n, y.argmax(-1).bincount(minlength=12).tolist(), flush=True)


if __name__ == "__main__":
    main()
