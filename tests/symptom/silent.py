"""A model whose faults report nothing: `python -m tests.symptom.silent [cuda] DIRECTORY`.

Writes silent.pt2 and calls of it with what is right for each: silent.inputs.pt is a good one, silent.far.pt
overflows the product of int32. silent.right.pt and silent.far-right.pt are what the model would give with
64 bits. silent.weights.pt are the weights that were meant, of which the package has one permuted, and
silent.meant-right.pt what they give.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

FAR = 60_011  # its cell does not fit 32 bits


class Silent(nn.Module):  # type: ignore[misc]
    """Rows of a hashed cell and of an item, through a linear layer."""

    def __init__(self, wide: bool = False) -> None:
        super().__init__()
        self.wide = wide
        self.cells, self.items = nn.Parameter(torch.randn(64, 8)), nn.Parameter(torch.randn(20, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, cell: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        place = ((cell.long() if self.wide else cell) * 46021) % 61
        return self.head(torch.tanh(self.cells[place] + self.items[item]))


def main(*words: str) -> None:
    torch.manual_seed(0)
    where, device = Path(words[-1]), "cuda" if "cuda" in words[:-1] else "cpu"
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
    main(*sys.argv[1:])
