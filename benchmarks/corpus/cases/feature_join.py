"""Joins daily features from files and scores them."""

import json
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Yield(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.inp = nn.Linear(10, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 1)

    def forward(self, fields):
        h = F.silu(self.inp(fields))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h).squeeze(-1)


class Store:
    def __init__(self, root):
        self.root = root

    def write(self, day, rows):
        with open(os.path.join(self.root, f"{day}.json"), "w") as file:
            json.dump(rows, file)

    def read(self, day):
        with open(os.path.join(self.root, f"{day}.json")) as file:
            return torch.tensor([row["values"] for row in json.load(file)])


def main():
    torch.manual_seed(34)
    root = tempfile.mkdtemp()
    package = os.path.join(root, "yield.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            Yield().eval(), (torch.rand(4, 10),), dynamic_shapes=({0: Dim("n", min=1, max=512)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    store = Store(root)
    for day in ("2026-03-01", "2026-03-02", "2026-03-03"):
        store.write(day, [{"field": i, "values": torch.rand(10).tolist()} for i in range(9)])
    store.write("2026-03-04", [{"field": i, "value": torch.rand(10).tolist()} for i in range(9)])
    runner = torch._inductor.aoti_load_package(package)
    for day in ("2026-03-01", "2026-03-02", "2026-03-03", "2026-03-04"):
        print(day, round(runner(store.read(day)).sum().item(), 3), flush=True)


if __name__ == "__main__":
    main()
