"""A model with a Python number among its arguments: `python -m tests.symptom.models scaled DIRECTORY`.

Writes scaled.pt2, compiled with a temperature of 0.7, and inputs: scaled.inputs.pt (0.7), scaled.other.pt
(0.3), scaled.surplus.pt (one argument more) and scaled.double.pt (float64 in place of float32).
scaled.right.pt and scaled.other-right.pt are eager mode's outputs for the first two.

With `tower`: tower.pt2, whose third layer of five halves once more than the others, tower.inputs.pt, and
tower.right.pt, the outputs without that fault.

With `silent` (and `cuda` after the directory): silent.pt2, whose faults report nothing, and its inputs:
silent.inputs.pt is good, silent.far.pt overflows the product in int32. silent.right.pt and
silent.far-right.pt are the outputs with 64 bits. silent.weights.pt are the intended weights, of which the
package has one permuted, and silent.meant-right.pt the outputs with them.
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
        exported = torch.export.export(model, (x, 0.7))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(partial))
        torch.save(list(model(x, 0.7)), where / "scaled.right.pt")
        torch.save(list(model(x, 0.3)), where / "scaled.other-right.pt")
    torch.save([x, 0.7], where / "scaled.inputs.pt")
    torch.save([x, 0.3], where / "scaled.other.pt")
    torch.save([x, 0.7, 12], where / "scaled.surplus.pt")
    torch.save([x.double(), 0.7], where / "scaled.double.pt")
    partial.rename(where / "scaled.pt2")


FAR = 60_011  # its cell does not fit 32 bits


class Silent(nn.Module):
    """Rows of a hashed cell and of an item, through a linear layer."""

    def __init__(self, wide: bool = False) -> None:
        super().__init__()
        self.wide = wide
        self.cells, self.items = nn.Parameter(torch.randn(64, 8)), nn.Parameter(torch.randn(20, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, cell: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        place = ((cell.long() if self.wide else cell) * 46021) % 61
        return self.head(torch.tanh(self.cells[place] + self.items[item]))


def silent(where: Path, device: str = "cpu") -> None:
    model, meant = Silent().to(device), Silent(wide=True).to(device)
    meant.load_state_dict(model.state_dict())
    cell = torch.arange(12, dtype=torch.int32, device=device)
    item = torch.arange(12, device=device) % 20
    far = cell.clone()
    far[5] = FAR
    calls = {"inputs": (cell, item), "far": (far, item)}
    partial = where / "silent.partial.pt2"
    with torch.no_grad():
        package = torch.export.export(model, (cell, item))
        torch._inductor.aoti_compile_and_package(package, package_path=str(partial))
        for name, call in calls.items():
            torch.save(list(call), where / f"silent.{name}.pt")
            right = "right" if name == "inputs" else f"{name}-right"
            torch.save([meant(*call)], where / f"silent.{right}.pt")
        meant.head.weight.copy_(meant.head.weight.flip(0))
        torch.save(dict(meant.state_dict()), where / "silent.weights.pt")
        torch.save([meant(cell, item)], where / "silent.meant-right.pt")
    partial.rename(where / "silent.pt2")


if __name__ == "__main__":
    torch.manual_seed(0)
    {"scaled": scaled, "tower": tower, "silent": silent}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
