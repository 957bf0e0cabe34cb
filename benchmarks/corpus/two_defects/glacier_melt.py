"""Glacier runoff: stations report melt and the slope below them, which a surveyor tabulates."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEV = "cuda"


class Runoff(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(12, d)
        self.out = nn.Linear(d, 2)

    def forward(self, melt, slope):
        flow = torch.sigmoid(melt) * slope.unsqueeze(-1)
        return self.out(F.silu(self.inp(flow)))


def slopes(source, count):
    if source == "map":
        return torch.rand(count, device=DEV)
    table = [0.2 + 0.6 * i / count for i in range(count)]
    return torch.tensor(table, dtype=torch.float64).to(DEV)


def main():
    torch.manual_seed(33)
    with torch.device(DEV):
        model = Runoff().eval()
        sample = (torch.randn(8, 12), torch.rand(8))
    package = os.path.join(tempfile.mkdtemp(), "runoff.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=64)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for valley, count, source in (("west", 40, "map"), ("east", 90, "map"), ("south", 90, "survey")):
            melt, slope = torch.randn(count, 12, device=DEV), slopes(source, count)
            got, want = runner(melt, slope), model(melt, slope.float())
            torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)
            print(valley, count, "agrees", flush=True)
    print("season over", flush=True)


if __name__ == "__main__":
    main()
