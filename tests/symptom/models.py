"""A model with a Python number among its arguments: `python -m tests.symptom.models DIRECTORY`.

Writes scaled.pt2, compiled with a temperature of 0.7, with these calls: scaled.inputs.pt (0.7),
scaled.other.pt (0.3), scaled.surplus.pt (one argument more) and scaled.double.pt (float64 in place of
float32); and what eager mode gives for the first two: scaled.right.pt and scaled.other-right.pt.
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


def main(directory: str) -> None:
    torch.manual_seed(0)
    where, model = Path(directory), Scaled()
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
    main(sys.argv[1])
