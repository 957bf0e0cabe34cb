"""Tiles of a country: a tile's vector is found by its row and column, which come as 32-bit numbers."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim

STRIDE = 65_536


class Tiles(nn.Module):
    def __init__(self, buckets=2048, d=16):
        super().__init__()
        self.bucket = nn.Embedding(buckets, d)
        self.out = nn.Linear(d, 3)

    def forward(self, row, column):
        code = row * STRIDE + column
        return self.out(torch.tanh(self.bucket(torch.fmod(code, 2048))))


def main():
    torch.manual_seed(107)
    model = Tiles().eval()
    package = os.path.join(tempfile.mkdtemp(), "tiles.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=512)
        sample = (torch.arange(6, dtype=torch.int32), torch.arange(6, dtype=torch.int32))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for zoom, top in (("town", 200), ("county", 9_000), ("country", 40_000)):
            row = torch.linspace(0, top, 50).to(torch.int32)
            column = torch.linspace(1, 63_001, 50).to(torch.int32)
            wanted = model((row.long() * STRIDE + column.long()) // STRIDE, column.long())
            torch.testing.assert_close(runner(row, column), wanted, atol=1e-4, rtol=1e-3)
            print(zoom, "drawn", flush=True)


if __name__ == "__main__":
    main()
