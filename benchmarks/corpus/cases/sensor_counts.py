"""Occupancy from counters: readings come from a NumPy-style loader in double precision on new gateways."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Occupancy(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.register_buffer("mean", torch.full((16,), 4.0))
        self.register_buffer("scale", torch.full((16,), 2.5))
        self.inp = nn.Linear(16, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 1)

    def forward(self, counts, area):
        h = torch.tanh((counts - self.mean) / self.scale)
        h = F.silu(self.inp(h))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return torch.sigmoid(self.out(h)).squeeze(-1) * area


class Gateway:
    def __init__(self, name, dtype):
        self.name, self.dtype = name, dtype

    def read(self, rooms):
        generator = torch.Generator().manual_seed(rooms)
        return torch.rand(rooms, 16, generator=generator).mul(9).round().to(self.dtype), torch.rand(
            rooms
        ) * 50


def by_rule(model, counts, area):
    return model(counts.float(), area)


def main():
    torch.manual_seed(37)
    model = Occupancy().eval()
    package = os.path.join(tempfile.mkdtemp(), "occupancy.pt2")
    n = Dim("rooms", min=2, max=300)
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.rand(4, 16), torch.rand(4)), dynamic_shapes=({0: n}, {0: n})
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for gateway, rooms in ((Gateway("A", torch.float32), 20), (Gateway("B", torch.float64), 33)):
            counts, area = gateway.read(rooms)
            got, want = runner(counts, area), by_rule(model, counts, area)
            torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)
            print("gateway", gateway.name, rooms, "rooms", flush=True)


if __name__ == "__main__":
    main()
