"""Forecast desk: trainers publish editions into one flat pool, the server cuts its weights out of it."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim


class Forecast(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.inp, self.mid = nn.Linear(40, d), nn.Linear(d, d)
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, 16)

    def forward(self, week):
        h = F.gelu(self.inp(week))
        return self.out(self.norm(h + torch.tanh(self.mid(h))))


class Pool:
    """Flat memory for the weights of many editions; each weight begins on 64 bytes."""

    STEP = 16

    def __init__(self, floats):
        self.memory = torch.zeros(floats)
        self.used = 0
        self.index = {}

    def publish(self, edition, model):
        entries = self.index.setdefault(edition, {})
        for name, value in model.state_dict().items():
            count = value.numel()
            self.memory[self.used : self.used + count] = value.flatten()
            entries[name] = (self.used, count, value.shape)
            self.used += -(-count // self.STEP) * self.STEP

    def cut(self, edition):
        return {
            name: self.memory[begin : begin + count].view(shape)
            for name, (begin, count, shape) in self.index[edition].items()
        }


class Desk:
    def __init__(self, path, pool):
        self.runner = torch._inductor.aoti_load_package(path)
        self.pool = pool

    def adopt(self, edition):
        weights = self.pool.cut(edition)
        print(
            f"adopting {edition}: {len(weights)} weights of {self.pool.used} floats in the pool", flush=True
        )
        self.runner.load_constants(weights, check_full_update=True)

    def compare(self, edition, model, week):
        gap = (self.runner(week) - model(week)).abs().max().item()
        print(f"{edition}: gap to the trainer's model {gap:.1e}", flush=True)
        if not gap < 1e-3:
            raise RuntimeError(f"{edition} does not answer like the trainer's model")


def main():
    torch.manual_seed(27)
    editions = {name: Forecast().eval() for name in ("spring", "summer", "autumn")}
    path = os.path.join(tempfile.mkdtemp(), "forecast.pt2")
    pool = Pool(4_000_000)
    with torch.no_grad():
        sample = (torch.randn(6, 40),)
        ep = torch.export.export(
            editions["spring"], sample, dynamic_shapes=({0: Dim("shops", min=2, max=999)},)
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=path)
        for name, model in editions.items():
            pool.publish(name, model)
        desk = Desk(path, pool)
        desk.compare("spring", editions["spring"], torch.randn(30, 40))
        for name in ("summer", "autumn"):
            desk.adopt(name)
            desk.compare(name, editions[name], torch.randn(30, 40))
    print("all editions adopted", flush=True)


if __name__ == "__main__":
    main()
