"""Harbour tide gauge cleaning: despike, level and report per berth.

The despiking routine is the old NumPy one from the tide office, wrapped as an
operator so that it can be part of the exported pipeline.
"""
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.export import Dim

BERTHS = 6


@torch.library.custom_op("tide::despike", mutates_args=())
def despike(levels: torch.Tensor, limit: float) -> torch.Tensor:
    rows = levels.numpy()
    centre = np.median(rows, axis=1, keepdims=True)
    rows -= centre
    np.clip(rows, -limit, limit, out=rows)
    return torch.from_numpy(np.abs(rows).mean(axis=1))


@despike.register_fake
def _(levels, limit):
    return levels.new_empty(levels.shape[0])


class BerthReport(nn.Module):
    def __init__(self, limit=0.4):
        super().__init__()
        self.limit = limit
        self.register_buffer("datum", torch.linspace(1.2, 2.4, BERTHS).unsqueeze(1))
        coupling = torch.diag(torch.linspace(0.9, 1.1, BERTHS)) + 0.03
        self.register_buffer("coupling", coupling)

    def forward(self, gauge):
        levels = torch.mm(self.coupling, gauge + self.datum)
        roughness = torch.ops.tide.despike(levels, self.limit)
        swing = levels.amax(dim=1) - levels.amin(dim=1)
        return roughness, swing, levels.mean(dim=1)


def reference(model, gauge):
    levels = torch.mm(model.coupling, gauge + model.datum).numpy()
    centre = np.median(levels, axis=1, keepdims=True)
    cut = np.clip(levels - centre, -model.limit, model.limit)
    return np.abs(cut).mean(axis=1), np.ptp(levels, axis=1), levels.mean(axis=1)


def hour(seed, samples, spikes=()):
    gen = torch.Generator().manual_seed(seed)
    base = 0.25 * torch.sin(torch.linspace(0, 6.0, samples)).repeat(BERTHS, 1)
    base += 0.02 * torch.randn(BERTHS, samples, generator=gen)
    for berth, at, height in spikes:
        base[berth, at] += height
    return base


def check(name, got, want):
    for label, a, b in zip(("roughness", "swing", "mean level"), got, want):
        if not np.allclose(a.numpy(), b, rtol=1e-4, atol=1e-4):
            raise AssertionError(f"{name}: {label} differs, got {a.numpy().round(3)}, office has {b.round(3)}")
    print(f"{name}: agrees with the tide office")


def main():
    workdir = Path(tempfile.mkdtemp(prefix="tide_"))
    try:
        model = BerthReport().eval()
        program = torch.export.export(
            model, (hour(0, 60),), dynamic_shapes=({1: Dim("samples", min=8, max=4096)},)
        )
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(workdir / "tide.pt2"))
        pipeline = torch._inductor.aoti_load_package(path)

        with torch.no_grad():
            warmup = pipeline(hour(1, 60))
            print("warm-up roughness:", warmup[0].numpy().round(3))
            assert np.allclose(warmup[0].numpy(), reference(model, hour(1, 60))[0], atol=1e-4)

            stormy = hour(2, 90, spikes=((1, 20, 1.9), (4, 71, -2.2)))
            check("storm hour", pipeline(stormy), reference(model, stormy))
        print("report sent")
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


if __name__ == "__main__":
    main()
