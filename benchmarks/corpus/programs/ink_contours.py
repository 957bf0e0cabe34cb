"""Handwriting: an operator of the ink library measures strokes before the network reads them."""

import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, D = "cuda", 96


@torch.library.custom_op("ink::arc_length", mutates_args=())
def arc_length(strokes: torch.Tensor) -> torch.Tensor:
    """Length along every stroke; long strokes are summed in double precision."""
    step = (strokes[:, 1:] - strokes[:, :-1]).square().sum(-1).sqrt()
    step = F.pad(step, (1, 0))
    if strokes.shape[1] <= 128:
        return step.cumsum(1)
    total = np.cumsum(step.cpu().numpy().astype(np.float64), axis=1)
    return torch.from_numpy(total.astype(np.float32))


@arc_length.register_fake
def _(strokes):
    return strokes.new_empty(strokes.shape[0], strokes.shape[1])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.out = nn.Linear(D, 26)

    def features(self, strokes):
        strokes = torch.tanh(strokes * 0.05) * 20.0
        along = arc_length(strokes)
        wave = torch.sin(along * 0.25)
        return torch.cat([strokes, wave.unsqueeze(-1)], -1)

    def forward(self, strokes):
        h = F.silu(self.inp(self.features(strokes)))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h.mean(1))


def pages(strokes, points):
    return torch.randn(strokes, points, 2, device=DEV).cumsum(1) * 0.1


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Reader().eval()
    b, t = Dim("b", min=2, max=4096), Dim("t", min=4, max=2048)
    pkg = os.path.join(tempfile.mkdtemp(), "ink.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (pages(8, 40),), dynamic_shapes=({0: b, 1: t},))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    for text, strokes, points in (("note", 30, 50), ("form", 400, 128), ("letter", 400, 700)):
        y = runner(pages(strokes, points))
        torch.cuda.synchronize()
        print(text, tuple(y.shape), y.argmax(-1)[:8].tolist(), flush=True)


if __name__ == "__main__":
    main()
