"""Scores road segments; segments are addressed by a hash of their ends."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

SEGMENTS = 5003


class Planner(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.register_buffer("speed", torch.rand(SEGMENTS, d))
        self.hour = nn.Linear(2, d)
        self.body = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.out = nn.Linear(d, 1)

    def forward(self, segments, clock):
        h = F.embedding(segments, self.speed).mean(1) + self.hour(clock)
        for layer in self.body:
            h = h + F.gelu(layer(h))
        return F.softplus(self.out(h)).squeeze(-1)


def segment_ids(start, end):
    """32-bit hash of the two ends, folded into the table."""
    mixed = (start * 73856093) ^ (end * 19349663)
    return torch.fmod(mixed.to(torch.int32), SEGMENTS).to(torch.int64)


def route(nodes, count, length, generator):
    ends = torch.randint(0, nodes, (count, length + 1), generator=generator)
    return segment_ids(ends[:, :-1], ends[:, 1:])


def main():
    torch.manual_seed(7)
    model = Planner().eval()
    package = os.path.join(tempfile.mkdtemp(), "planner.pt2")
    b, t = Dim("b", min=2, max=256), Dim("t", min=2, max=512)
    with torch.no_grad():
        sample = (torch.randint(0, SEGMENTS, (4, 20)), torch.rand(4, 2))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b, 1: t}, {0: b}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    generator = torch.Generator().manual_seed(0)
    for town, nodes in (("village", 3), ("suburb", 5), ("city", 90_000)):
        ids, clock = route(nodes, 6, 30, generator), torch.rand(6, 2)
        minutes = runner(ids, clock)
        print(town, round(minutes.mean().item(), 3), flush=True)


if __name__ == "__main__":
    main()
