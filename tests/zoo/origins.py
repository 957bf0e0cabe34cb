"""Models whose bad value is made before it does harm: `python -m tests.zoo.origins NAME DIRECTORY`.

Writes NAME.pt2, NAME.inputs.pt (good inputs) and NAME.bad.pt. Each model is compiled from seed 0.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Buckets(nn.Module):
    """A distance is put into one of 64 buckets; the largest distance falls into a 65th."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 8)
        self.table = nn.Embedding(64, 8)

    def forward(self, x: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        share = (distance.clamp(1, 500).float() - 1) / 499
        bucket = torch.floor(torch.sqrt(share) * 64).long()
        return self.inp(x) + self.table(bucket)


class Carried(nn.Module):
    """Keys are computed, sorted and gathered before they index a table."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 12)
        self.table = nn.Embedding(40, 8)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        keys = ids * 3 - 2
        order = torch.argsort(self.score(x), dim=1)
        shuffled = torch.gather(keys, 1, order)
        ranked, _ = torch.sort(shuffled, dim=1)
        return self.table(ranked).sum(1)


class Joined(nn.Module):
    """Given and computed ids are put together in memory before they index a table, in one launch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(75, 8)

    def forward(self, ids: torch.Tensor, age: torch.Tensor) -> torch.Tensor:
        return self.table(torch.cat([ids, (age * 0.7).long()[:, None]], 1))


class Masked(nn.Module):
    """Attention over the positions that a mask allows; a row without any is NaN, and NaN of x counts as 0."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = torch.where(x.isnan(), 0.0, x)
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        return torch.softmax(scores, -1) @ x


class Block(nn.Module):
    """One layer: its own bucket scale, chosen when it is built."""

    def __init__(self, width: int, farthest: float) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.bias = nn.Embedding(16, width)
        self.farthest = farthest

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        scale = torch.log1p(torch.tensor(self.farthest))
        bucket = (torch.log1p(steps.float()) / scale * 16).long()
        return torch.relu(self.mix(x)) + self.bias(bucket)


class Layers(nn.Module):
    """Twelve layers that differ in one constant: the eighth knows distances below 64 only."""

    def __init__(self) -> None:
        super().__init__()
        reach = [128.0, 160.0, 192.0, 256.0]
        scales = [64.0 if i == 7 else reach[i % 4] for i in range(12)]
        self.layers = nn.ModuleList(Block(8, scale) for scale in scales)

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, steps)
        return x


class Unit(nn.Linear):
    """A product divided by its norm, which is 0 for a weight of zeros."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        return made / made.norm(dim=-1, keepdim=True)


def _good_mask() -> torch.Tensor:
    return torch.arange(6)[None, :] < torch.tensor([6, 3, 4, 2])[:, None]


def _bad_mask() -> torch.Tensor:
    mask = _good_mask()
    mask[2] = False
    return mask


def _with(tensor: torch.Tensor, place: tuple[int, ...], value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[place] = value
    return changed


_X8 = torch.randn(4, 8, generator=_generator(1))
_X6 = torch.randn(4, 6, generator=_generator(2))
_X468 = torch.randn(4, 6, 8, generator=_generator(3))
_DISTANCE = torch.tensor([3, 17, 250, 499])
_IDS = torch.randint(1, 14, (4, 12), generator=_generator(4))
_STEPS = torch.tensor([0, 5, 31, 60])

MODELS: dict[str, tuple[Callable[[], nn.Module], Tensors, Tensors]] = {
    "buckets": (Buckets, (_X8, _DISTANCE), (_X8, _with(_DISTANCE, (2,), 731))),
    "carried": (Carried, (_X6, _IDS), (_X6, _with(_IDS, (2, 5), 17))),
    "joined": (Joined, (_IDS[:, :2], _X8[:, 0].abs()), (_IDS[:, :2], _with(_X8[:, 0].abs(), (2,), 120))),
    "masked": (Masked, (_X468, _good_mask()), (_with(_X468, (0, 1, 2), math.nan), _bad_mask())),
    "zeroed": (
        lambda: Unit(8, 4, bias=False).apply(lambda made: nn.init.zeros_(made.weight)),
        (_X8,),
        (_X8,),
    ),
    "layers": (Layers, (_X8, _STEPS), (_X8, _with(_STEPS, (1,), 70))),
}


def main(name: str, directory: str) -> None:
    build, good, bad = MODELS[name]
    torch.manual_seed(0)
    where = Path(directory)
    with torch.no_grad():
        exported = torch.export.export(build().eval(), good)
        torch.export.save(exported, where / f"{name}.exported.pt2")
        torch.save(list(good), where / f"{name}.inputs.pt")
        torch.save(list(bad), where / f"{name}.bad.pt")
        partial = where / f"{name}.partial.pt2"
        torch._inductor.aoti_compile_and_package(exported, package_path=str(partial))
    partial.rename(where / f"{name}.pt2")


if __name__ == "__main__":
    main(*sys.argv[1:])
