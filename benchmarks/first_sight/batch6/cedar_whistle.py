"""Air quality bulletin: hourly station values with gaps, in decibel-like units.

Stations drop out all the time. Missing hours arrive as NaN; the bulletin shows a
blank for a station without any value, and the log index of a spotless hour is
printed as minus infinity, as the publication rules ask for.
"""
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.export import Dim

HOURS = 24


class Bulletin(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.linspace(0.5, 1.5, HOURS))

    def forward(self, hourly):
        present = ~torch.isnan(hourly)
        filled = torch.where(present, hourly, 0.0)
        weight = torch.where(present, self.weights, 0.0)
        mean = (filled * weight).sum(1) / weight.sum(1)
        index = 10.0 * torch.log10(filled.amax(1) / 25.0)
        blank = ~present.any(1)
        index = torch.where(blank, float("nan"), index)
        return mean, index, present.sum(1)


def by_hand(hourly, weights):
    rows = hourly.numpy().astype(np.float64)
    mean, index, hours = [], [], []
    for row in rows:
        good = ~np.isnan(row)
        hours.append(int(good.sum()))
        if not good.any():
            mean.append(np.nan)
            index.append(np.nan)
            continue
        mean.append(np.average(row[good], weights=weights[good]))
        top = row[good].max()
        index.append(-np.inf if top == 0.0 else 10.0 * np.log10(top / 25.0))
    return np.array(mean), np.array(index), np.array(hours)


def stations(seed, count, gaps=0.0, silent=(), spotless=()):
    rng = np.random.default_rng(seed)
    values = rng.gamma(2.0, 9.0, (count, HOURS)).astype(np.float32)
    values[rng.random(values.shape) < gaps] = np.nan
    for row in spotless:
        values[row] = 0.0
    for row in silent:
        values[row] = np.nan
    return torch.from_numpy(values)


def show(name, hourly, result, weights):
    expected = by_hand(hourly, weights)
    for label, got, want in zip(("mean", "index", "hours"), result, expected):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4, equal_nan=True, err_msg=f"{name}: {label}")
    mean, index, hours = result
    print(f"{name}: mean {[round(v, 2) for v in mean.tolist()]}")
    print(f"{name}: index {[round(v, 2) for v in index.tolist()]}")
    blanks = int(torch.isnan(mean).sum())
    if blanks:
        print(f"WARNING {name}: {blanks} station(s) without any value, {int(torch.isinf(index).sum())} at -inf")
    assert torch.equal(torch.isnan(mean), hours == 0)


def main():
    workdir = Path(tempfile.mkdtemp(prefix="bulletin_"))
    try:
        model = Bulletin().eval()
        count = Dim("stations", min=1, max=500)
        program = torch.export.export(model, (stations(0, 5),), dynamic_shapes=({0: count},))
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(workdir / "bulletin.pt2")
        )
        compute = torch._inductor.aoti_load_package(package)
        weights = model.weights.numpy().astype(np.float64)

        with torch.no_grad():
            for name, hourly in (
                ("monday", stations(1, 4)),
                ("tuesday", stations(2, 6, gaps=0.3)),
                ("wednesday", stations(3, 7, gaps=0.5, silent=(2, 5), spotless=(4,))),
            ):
                show(name, hourly, compute(hourly), weights)
        print("bulletin published")
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


if __name__ == "__main__":
    main()
