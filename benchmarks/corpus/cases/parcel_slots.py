"""Parcel machines: how many parcels each locker takes, and what the next delivery will bring."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

KINDS = 24


class Machines(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.kind = nn.Embedding(KINDS, d)
        self.volume = nn.Linear(2, d)
        self.body = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.out = nn.Linear(d, 1)

    def fill(self, room, parcel):
        whole = room // parcel
        rest = room - whole * parcel
        return whole, rest

    def forward(self, kinds, room, parcel):
        whole, rest = self.fill(room, parcel)
        h = self.kind(kinds) + self.volume(torch.stack([whole, rest], -1).float())
        h = h + self.body(h)
        return whole, F.softplus(self.out(h)).squeeze(-1)


def lockers(count, smallest):
    generator = torch.Generator().manual_seed(count)
    kinds = torch.randint(0, KINDS, (count,), generator=generator)
    room = torch.randint(200, 900, (count,), generator=generator)
    litres = torch.rand(count, generator=generator) * 12 + smallest
    return kinds, room, litres.long()


def main():
    torch.manual_seed(15)
    model = Machines().eval()
    package = os.path.join(tempfile.mkdtemp(), "machines.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=20_000)
        exported = torch.export.export(model, lockers(40, 2), dynamic_shapes=({0: n},) * 3)
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for town, count, smallest in (("harbour", 120, 2), ("old town", 90, 1), ("airport", 300, 0)):
            whole, demand = runner(*lockers(count, smallest))
            print(town, int(whole.sum()), round(demand.mean().item(), 3), flush=True)


if __name__ == "__main__":
    main()
