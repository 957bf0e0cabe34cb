"""Overnight risk run: portfolio volatility and drift from closing prices and a covariance file."""
import os
import shutil
import tempfile

import numpy as np
import torch
from torch import nn

ASSETS, DAYS = 12, 64


class Risk(nn.Module):
    def __init__(self):
        super().__init__()
        self.halflife = nn.Parameter(torch.tensor(20.0))
        self.register_buffer("age", torch.arange(DAYS - 2, -1, -1, dtype=torch.float32))

    def forward(self, closes, covariance, weights):
        decay = torch.exp2(-self.age / self.halflife)
        decay = decay / decay.sum()
        steps = torch.log(closes[:, 1:] / closes[:, :-1])
        drift = (steps * decay).sum(dim=1)
        exposure = weights @ covariance
        variance = (exposure * weights).sum(dim=1)
        tilt = weights * torch.softmax(drift * 100, dim=0)
        return variance.sqrt(), weights @ drift, tilt.sum(dim=1)


class Desk:
    """One book: its price history, its covariance matrix as the statistics job saved it, its portfolios."""

    def __init__(self, name, seed):
        rng = np.random.default_rng(seed)
        moves = rng.normal(0.0003, 0.012, (ASSETS, DAYS)).astype(np.float32)
        self.name = name
        self.closes = 100 * np.exp(np.cumsum(moves, axis=1, dtype=np.float32))
        spread = np.cov(moves).astype(np.float32)
        self.covariance = (spread + spread.T) / 2
        stakes = rng.random((5, ASSETS)).astype(np.float32)
        self.weights = stakes / stakes.sum(axis=1, keepdims=True)

    def tensors(self):
        return tuple(torch.from_numpy(part) for part in (self.closes, self.covariance, self.weights))


def vendor_file(desk):
    """The backup vendor: column-major matrices, and 0 where the exchange sent no print."""
    desk.covariance = np.asfortranarray(desk.covariance)
    desk.closes[7, 41] = 0.0
    return desk


def evaluate(runner, desk):
    volatility, drift, tilt = runner(*desk.tensors())
    for label, values in (("volatility", volatility), ("drift", drift), ("tilt", tilt)):
        unusable = int((~torch.isfinite(values)).sum())
        if unusable:
            raise FloatingPointError(f"{desk.name}: {unusable} of {len(values)} {label} figures are not finite")
    print(f"{desk.name}: volatility {volatility.mean().item():.5f}, drift {drift.mean().item():+.5f}")


def main():
    torch.manual_seed(0)
    folder = tempfile.mkdtemp(prefix="risk_")
    try:
        model = Risk().eval()
        with torch.no_grad():
            program = torch.export.export(model, Desk("template", 1).tensors())
            package = torch._inductor.aoti_compile_and_package(
                program, package_path=os.path.join(folder, "risk.pt2")
            )
            runner = torch._inductor.aoti_load_package(package)
            evaluate(runner, Desk("rates", 2))
            evaluate(runner, Desk("metals", 3))
            evaluate(runner, vendor_file(Desk("freight", 4)))
        print("risk run complete")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
