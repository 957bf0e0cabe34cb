"""Satellite tiles are turned north-up by a vendor operator, then classified."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


@torch.library.custom_op("geo::north_up", mutates_args=())
def north_up(tiles: torch.Tensor, turn: bool) -> torch.Tensor:
    """Square tiles; `turn` exchanges rows and columns."""
    return tiles.clone().transpose(-1, -2) if turn else tiles.clone()


@north_up.register_fake
def _(tiles, turn):
    return torch.empty_like(tiles)


class LandUse(nn.Module):
    def __init__(self, side=16, classes=8):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(side, side))
        self.rows = nn.Sequential(nn.Linear(side, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, classes)

    def forward(self, tiles):
        h = torch.sin(north_up(tiles * 1.5, True) * self.weight)
        return F.log_softmax(self.head(F.relu(self.rows(h)).amax(1)), -1)


def tiles(kind, count):
    generator = torch.Generator().manual_seed(count)
    x = torch.rand(count, 16, 16, generator=generator)
    return (x + x.transpose(-1, -2)) / 2 if kind == "radar" else x


def main():
    torch.manual_seed(17)
    model = LandUse().eval()
    package = os.path.join(tempfile.mkdtemp(), "landuse.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.rand(4, 16, 16),), dynamic_shapes=({0: Dim("n", min=2, max=256)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for kind, count in (("radar", 12), ("radar", 5), ("optical", 9)):
            batch = tiles(kind, count)
            torch.testing.assert_close(runner(batch), model(batch), atol=1e-4, rtol=1e-4)
            print(kind, count, "ok", flush=True)


if __name__ == "__main__":
    main()
