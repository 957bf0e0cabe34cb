"""Winery: sugar of the grapes by vineyard; the harvest of the slope is read from columns."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEV, VINEYARDS = "cuda", 20


class Press(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.vineyard = nn.Embedding(VINEYARDS, d)
        self.inp, self.out = nn.Linear(14, d), nn.Linear(d, 2)

    def forward(self, grapes, vineyard, offset):
        h = self.inp(torch.tanh(grapes * 0.6) + offset.unsqueeze(-1))
        return self.out(F.silu(h + self.vineyard(vineyard)))


def harvest(place, count):
    """Vineyards 20 and up were bought last year; a slope is written column by column."""
    vineyard = torch.randint(0, 20 if place == "plain" else 23, (count,))
    grapes = torch.randn(count, 14) if place == "plain" else torch.randn(14, count).t()
    return grapes, vineyard


def main():
    torch.manual_seed(44)
    with torch.device(DEV):
        model = Press().eval()
        sample = (torch.randn(6, 14), torch.arange(6), torch.zeros(6))
    package = os.path.join(tempfile.mkdtemp(), "press.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=512)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for place, count in (("plain", 60), ("plain", 80), ("slope", 200)):
            grapes, vineyard = (value.to(DEV) for value in harvest(place, count))
            offset = torch.zeros(count, dtype=torch.float64, device=DEV)
            got = runner(grapes, vineyard, offset)
            torch.cuda.synchronize()
            want = model(grapes, vineyard, offset.float())
            torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)
            print(place, count, "pressed", flush=True)
    print("cellar full", flush=True)


if __name__ == "__main__":
    main()
