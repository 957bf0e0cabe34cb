"""Scores jobs per tenant; tenants are placed on shards by a plan that operations publish as JSON."""

import json
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

TENANTS, SHARDS, WIDTH = 340, 48, 32
PLAN = '{"epochs": [{"first": 0, "modulus": 48}, {"first": 300, "modulus": 56}]}'


def read_plan(text):
    """The shard of every tenant."""
    epochs = json.loads(text)["epochs"]
    shards = torch.empty(TENANTS, dtype=torch.long)
    for tenant in range(TENANTS):
        modulus = [e["modulus"] for e in epochs if e["first"] <= tenant][-1]
        shards[tenant] = tenant % modulus
    return shards


class JobScorer(nn.Module):
    def __init__(self, plan):
        super().__init__()
        self.register_buffer("shard_of", plan)
        self.load = nn.Parameter(torch.randn(SHARDS, WIDTH) * 0.1)
        self.job = nn.Linear(12, WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, 40), nn.GELU(), nn.Linear(40, 1))

    def forward(self, tenants, jobs):
        shard = self.shard_of[tenants]
        placed = self.load[shard]
        h = torch.cat([placed, F.silu(self.job(jobs))], dim=-1)
        return self.head(self.norm(h)).squeeze(-1)


def build(model, path):
    n = Dim("n", min=2, max=4096)
    args = (torch.arange(8), torch.randn(8, 12))
    program = torch.export.export(model, args, dynamic_shapes=({0: n}, {0: n}))
    return torch._inductor.aoti_compile_and_package(program, package_path=path)


def main():
    torch.manual_seed(11)
    model = JobScorer(read_plan(PLAN)).eval()
    with torch.no_grad():
        path = build(model, os.path.join(tempfile.mkdtemp(), "jobs.pt2"))
        scorer = torch._inductor.aoti_load_package(path)
        print("plan loaded,", TENANTS, "tenants", flush=True)
        for morning in range(6):
            tenants = torch.randperm(TENANTS - 20)[:64] if morning < 4 else torch.arange(300, 340)
            scores = scorer(tenants, torch.randn(len(tenants), 12))
            print("run", morning, "best job", int(scores.argmax()), flush=True)


if __name__ == "__main__":
    main()
