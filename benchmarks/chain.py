"""Child of `judged_launches`: `chain.py LAYERS ROWS WIDTH DEVICE DIRECTORY`.

Exports and compiles a chain of LAYERS products and activations, which Inductor cannot fuse into fewer than
two launches for each, with one weight that all of them share, and saves program and inputs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn


class Chain(nn.Module):  # type: ignore[misc]
    """Every layer writes an activation of [rows, width] in one range of values; only the last has NaN."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = layers
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.layers):
            x = torch.tanh(x @ self.weight) + 0.001
        return torch.sqrt(x)  # NaN, in the last launch only


def main(layers: int, rows: int, width: int, device: str, directory: Path) -> None:
    torch.manual_seed(0)
    model = Chain(layers, width).to(device)
    x = torch.randn(rows, width, device=device)
    torch.save((x,), directory / "inputs.pt")
    with torch.no_grad():
        exported = torch.export.export(model, (x,))
        torch.export.save(exported, directory / "program.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=str(directory / "chain.pt2"))


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]), int(given[1]), int(given[2]), given[3], Path(given[4]))
