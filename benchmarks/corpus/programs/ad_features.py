"""Advertisement ranking over several categorical fields that share one table."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"
SIZES = [500, 24, 7, 1200]


class Ranker(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, d) for size in SIZES)
        self.dense = nn.Linear(13, d)
        self.layers = nn.ModuleList(nn.Linear(5 * d, 5 * d) for _ in range(2))
        self.out = nn.Linear(5 * d, 1)

    def forward(self, dense, fields):
        parts = [F.relu(self.dense(dense))]
        parts += [table(fields[:, i]) for i, table in enumerate(self.tables)]
        h = torch.cat(parts, -1)
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return torch.sigmoid(self.out(h)).squeeze(-1)


def requests(count, weekday):
    fields = torch.stack([torch.randint(0, size, (count,), device=DEVICE) for size in SIZES], -1)
    fields[:, 2] = weekday
    return torch.rand(count, 13, device=DEVICE), fields


def main():
    torch.manual_seed(4)
    with torch.device(DEVICE):
        model = Ranker().eval()
    package = os.path.join(tempfile.mkdtemp(), "ads.pt2")
    n = Dim("n", min=2, max=65536)
    with torch.no_grad():
        exported = torch.export.export(model, requests(8, 0), dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for day, weekday in (("monday", 1), ("saturday", 6), ("sunday", 7)):
        p = runner(*requests(4096, weekday))
        torch.cuda.synchronize()
        print(day, round(p.mean().item(), 4), flush=True)


if __name__ == "__main__":
    main()
