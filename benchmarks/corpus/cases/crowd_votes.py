"""Votes of a crowd in half precision: the order in which they come in should hardly matter."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, D = "cuda", 128


class Votes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(24, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.out = nn.Linear(D, 16)

    def forward(self, votes):
        h = F.silu(self.inp(votes))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        spread = (h - h.mean(0)).square().mean(0).sqrt()
        return self.out(h.mean(0) + 0.1 * spread)


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Votes().half().eval()
        sample = torch.randn(64, 24).half()
    pkg = os.path.join(tempfile.mkdtemp(), "votes.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (sample,), dynamic_shapes=({0: Dim("n", min=2, max=1_000_000)},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        double = Votes().to(DEV).double().eval()
        double.load_state_dict(model.state_dict())
        for place, n in (("village", 100), ("town", 5000), ("city", 60_000)):
            votes = torch.randn(n, 24, device=DEV).half()
            y = runner(votes)
            shuffled = runner(votes[torch.randperm(n, device=DEV)])
            off = (y - shuffled).abs().max().item()
            eager = (y - model(votes)).abs().max().item()
            print(place, n, "same bits", torch.equal(y, shuffled), "order", off, "eager", eager, flush=True)
            torch.testing.assert_close(y.double(), double(votes.double()), atol=2e-2, rtol=2e-2)
    print("votes counted", flush=True)


if __name__ == "__main__":
    main()
