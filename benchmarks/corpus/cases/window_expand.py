"""Telemetry compaction: events carry a repeat count, the model expands them and pools the windows."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)


class Expander(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp, self.n, self.o = nn.Linear(10, d), nn.LayerNorm(d), nn.Linear(d, 4)

    def forward(self, events, ticks):
        h = F.gelu(self.inp(events))
        n = ticks.sum().item()
        torch._check(n >= 1)
        clock = torch.zeros(n, 32) + h.mean(0)
        clock = self.n(clock * torch.linspace(0, 1, 32))
        return self.o(clock.cumsum(0)).mean(0)


def batch(seed, wrap=False):
    g = torch.Generator().manual_seed(seed)
    ticks = torch.randint(1, 50, (12,), generator=g)
    if wrap:  # the counter of one unit was reset and is read as unsigned
        ticks[7] = (1 << 40) - 3
    return torch.randn(12, 10, generator=g), ticks


def main():
    model = Expander().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "expand.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, batch(0))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        print("loaded", flush=True)
        for hour, wrap in enumerate([False, False, True]):
            y = runner(*batch(hour, wrap))
            print("hour", hour, [round(v, 3) for v in y.tolist()], flush=True)


if __name__ == "__main__":
    main()
