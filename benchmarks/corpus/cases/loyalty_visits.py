"""Loyalty score from the visits of a customer; the visit lists are padded to a common length."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, D = "cuda", 64


class Loyalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.visit = nn.Linear(10, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.w = nn.Linear(D, 1)
        self.out = nn.Linear(D, 3)

    def encode(self, visits):
        h = F.silu(self.visit(visits))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return h

    def pool(self, h, count):
        there = torch.arange(h.shape[1], device=h.device)[None, :] < count[:, None]
        a = self.w(h).squeeze(-1).masked_fill(~there, float("-inf")).softmax(-1)
        return (h * a.unsqueeze(-1)).sum(1)

    def forward(self, visits, count):
        return self.out(self.pool(self.encode(visits), count)).softmax(-1)


def stored_day(n, longest):
    """A day from the archive, as the writer left it."""
    return torch.randn(n, longest, 10, device=DEV), torch.randint(
        1, longest + 1, (n,), dtype=torch.int32, device=DEV
    )


def live_day(lists):
    """Visits of the running day come as one list per customer."""
    count = torch.tensor([len(v) for v in lists], device=DEV)
    visits = torch.zeros(len(lists), max(map(len, lists)), 10, device=DEV)
    for i, v in enumerate(lists):
        visits[i, : len(v)] = torch.tensor(v, device=DEV)
    return visits, count


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Loyalty().eval()
    b, t = Dim("b", min=2, max=4096), Dim("t", min=2, max=512)
    pkg = os.path.join(tempfile.mkdtemp(), "loyalty.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, stored_day(8, 14), dynamic_shapes=({0: b, 1: t}, {0: b}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    days = [("monday", stored_day(300, 22)), ("tuesday", stored_day(417, 9))]
    days.append(("today", live_day([[[0.1 * k] * 10 for k in range(1 + i % 7)] for i in range(120)])))
    for name, (visits, count) in days:
        p = runner(visits, count)
        share = (p[:, 0] > 0.4).float().mean().item()
        print(name, tuple(p.shape), "loyal", round(share, 3), flush=True)
        if not p.isfinite().all():
            raise RuntimeError(f"{name}: no score for {int((~p.isfinite().all(-1)).sum())} customers")


if __name__ == "__main__":
    main()
