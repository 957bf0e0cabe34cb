"""Small models with the faults that the trials are about: `python -m tests.interventions.models DIRECTORY`.

Writes masked.pt2 with masked.inputs.pt, and inputs with one fault each: masked.nan.pt (a row is masked as a
whole), masked.index.pt (one id is outside the table), masked.dtype.pt (float64 in place of float32).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn


class Masked(nn.Module):
    """Attention over the rows of a table, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 16)
        self.query = nn.Parameter(torch.randn(16))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = self.table(ids) + x
        scores = (rows * self.query).sum(-1).masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1).unsqueeze(-1) * rows).sum(1)


def sample() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 12, (6, 5), generator=generator)
    mask = torch.rand(6, 5, generator=generator) > 0.4
    mask[:, 0] = True
    return {"ids": ids, "mask": mask, "x": torch.randn(6, 5, 16, generator=generator)}


def main(directory: str) -> None:
    torch.manual_seed(0)
    where, good = Path(directory), sample()
    exported = torch.export.export(Masked(), tuple(good.values()))
    partial = where / "masked.partial.pt2"
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(exported, package_path=str(partial))
    torch.save(list(good.values()), where / "masked.inputs.pt")
    masked = {**good, "mask": good["mask"].clone()}
    masked["mask"][2] = False
    torch.save(list(masked.values()), where / "masked.nan.pt")
    outside = {**good, "ids": good["ids"].clone()}
    outside["ids"][4, 1] = 12
    torch.save(list(outside.values()), where / "masked.index.pt")
    torch.save([good["ids"], good["mask"], good["x"].double()], where / "masked.dtype.pt")
    partial.rename(where / "masked.pt2")


if __name__ == "__main__":
    main(sys.argv[1])
