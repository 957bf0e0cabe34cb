"""A small ranker: compiles it with AOTInductor and writes a batch that works and one that breaks it.

Run: `python examples/ranker.py DIRECTORY`. The story is a common one: the catalogue has grown since the model
was exported, and one item of the new batch has an id beyond the embedding table.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

USERS = 500
ITEMS = 1000
WIDTH = 32
CANDIDATES = 20


class Ranker(nn.Module):
    """Scores candidate items for each user. `users` is int64 [batch], `items` int64 [batch, 20]."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH)
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.mix = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        who = self.users(users).unsqueeze(1).expand(-1, items.shape[1], -1)
        what = self.items(items)
        scores = self.mix(torch.cat([who, what], dim=-1)).squeeze(-1)
        return scores.softmax(-1)


def batch(newest_item: int) -> list[Tensor]:
    """Eight users with 20 candidates each; the last candidate of user 5 is `newest_item`."""
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(0, USERS, (8,), generator=generator)
    items = torch.randint(0, ITEMS, (8, CANDIDATES), generator=generator)
    items[5, -1] = newest_item
    return [users, items]


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    rows = torch.export.Dim("batch", min=2, max=256)
    good = batch(newest_item=ITEMS - 1)
    program = torch.export.export(Ranker(), tuple(good), dynamic_shapes=({0: rows}, {0: rows}))
    torch._inductor.aoti_compile_and_package(program, package_path=str(directory / "ranker.pt2"))
    torch.save(good, directory / "good.pt")
    torch.save(batch(newest_item=ITEMS + 24), directory / "bad.pt")


if __name__ == "__main__":
    main()
