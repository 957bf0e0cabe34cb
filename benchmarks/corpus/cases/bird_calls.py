"""Bird calls: spectra of short recordings go through a filter bank, in half precision."""

import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, BINS, BANDS, D = "cuda", 256, 32, 128


def filter_bank():
    """Triangles that overlap by half, as columns."""
    centre = torch.linspace(0, BINS - 1, BANDS + 2)
    f = torch.arange(BINS)[:, None].float()
    up = (f - centre[:-2]) / (centre[1:-1] - centre[:-2])
    down = (centre[2:] - f) / (centre[2:] - centre[1:-1])
    return torch.minimum(up, down).clamp(min=0)


class BirdCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", filter_bank())
        self.inp = nn.Linear(BANDS, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.out = nn.Linear(D, 20)

    def bands(self, re, im):
        power = re * re + im * im
        return torch.log1p(power @ self.bank)

    def forward(self, re, im):
        h = self.inp(self.bands(re, im))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h.mean(1)).softmax(-1)


def recording(count, frames, loudness):
    phase = torch.rand(count, frames, BINS, device=DEV) * 2 * math.pi
    a = torch.rand(count, frames, BINS, device=DEV) * loudness
    return (a * phase.cos()).half(), (a * phase.sin()).half()


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = BirdCalls().half().eval()
    b, t = Dim("b", min=2, max=512), Dim("t", min=4, max=512)
    pkg = os.path.join(tempfile.mkdtemp(), "birds.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, recording(4, 20, 1.0), dynamic_shapes=({0: b, 1: t}, {0: b, 1: t}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    for place, count, frames, loudness in (
        ("wood", 20, 60, 2.0),
        ("park", 8, 31, 25.0),
        ("window", 20, 60, 400.0),
    ):
        p = runner(*recording(count, frames, loudness))
        known = int((p.float().max(-1).values > 0).sum())
        print(place, "recordings", count, "classified", known, flush=True)
        if known < count:
            raise RuntimeError(f"{count - known} recordings of {place} have no class")


if __name__ == "__main__":
    main()
