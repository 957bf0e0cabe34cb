"""Marketplace ranker: prices are standardised per category and looked up in learned buckets."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(41)


class Ranker(nn.Module):
    def __init__(self, d=40, buckets=32):
        super().__init__()
        self.buckets = buckets
        self.bucket = nn.Embedding(buckets, d)
        self.text, self.mid, self.head = nn.Linear(48, d), nn.Linear(2 * d, d), nn.Linear(d, 1)
        self.norm = nn.LayerNorm(d)

    def forward(self, price, text):
        z = price - price.mean(1, keepdim=True)
        z = z / price.std(1, keepdim=True)
        slot = ((z * 4.0 + self.buckets / 2).clamp(0.0, self.buckets - 1.0)).long()
        h = torch.cat([self.bucket(slot), F.relu(self.text(text))], -1)
        return self.head(self.norm(F.gelu(self.mid(h)))).squeeze(-1)


def listing(n, k, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, k, generator=g) * 90 + 10, torch.randn(n, k, 48, generator=g)


def flat_sale(n, k, seed):
    price, text = listing(n, k, seed)
    price[2] = 9.75  # one category sells everything at one price
    return price, text


def main():
    model = Ranker().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "market.pt2")
    b = Dim("b", min=2, max=128)
    with torch.no_grad():
        ep = torch.export.export(model, listing(4, 20, 0), dynamic_shapes=({0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    print("loaded", flush=True)
    with torch.no_grad():
        for day, batch in enumerate([listing(4, 20, 1), listing(9, 20, 2), flat_sale(6, 20, 3)]):
            score = runner(*batch)
            print("day", day, tuple(score.shape), round(float(score.mean()), 4), flush=True)


if __name__ == "__main__":
    main()
