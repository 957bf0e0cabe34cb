"""A model with a Python number among its arguments: `python -m tests.symptom.models scaled DIRECTORY`.

Writes scaled.pt2, compiled with a temperature of 0.7, with these calls: scaled.inputs.pt (0.7),
scaled.other.pt (0.3), scaled.surplus.pt (one argument more) and scaled.double.pt (float64 in place of
float32); and what eager mode gives for the first two: scaled.right.pt and scaled.other-right.pt.

With `tower`: tower.pt2, whose third layer of five halves once more than the others; tower.inputs.pt, and in
tower.right.pt what it would return if that layer did not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn


class Scaled(nn.Module):
    """Scores over a temperature, and their sum over each row."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        scores = (self.head(x) / temperature).softmax(-1)
        return scores, (scores * 3.5).sum(-1)


class Tower(nn.Module):
    """Layers that are alike, but for those that halve once more."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.scales = [0.5] * 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = layer(x).tanh() * scale
        return x


def tower(where: Path) -> None:
    model, x = Tower(), torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    torch.save([x], where / "tower.inputs.pt")
    with torch.no_grad():
        torch.save([model(x)], where / "tower.right.pt")
        model.scales[2] = 0.25
        partial = where / "tower.partial.pt2"
        torch._inductor.aoti_compile_and_package(torch.export.export(model, (x,)), package_path=str(partial))
    partial.rename(where / "tower.pt2")


def scaled(where: Path) -> None:
    model = Scaled()
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
    partial = where / "scaled.partial.pt2"
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            torch.export.export(model, (x, 0.7)), package_path=str(partial)
        )
        torch.save(list(model(x, 0.7)), where / "scaled.right.pt")
        torch.save(list(model(x, 0.3)), where / "scaled.other-right.pt")
    torch.save([x, 0.7], where / "scaled.inputs.pt")
    torch.save([x, 0.3], where / "scaled.other.pt")
    torch.save([x, 0.7, 12], where / "scaled.surplus.pt")
    torch.save([x.double(), 0.7], where / "scaled.double.pt")
    partial.rename(where / "scaled.pt2")


if __name__ == "__main__":
    torch.manual_seed(0)
    {"scaled": scaled, "tower": tower}[sys.argv[1]](Path(sys.argv[2]))
