"""Call centre: one package cuts utterances out of a frame buffer, another one routes calls."""

import hashlib
import json
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, ROOM, D = "cuda", 2048, 64


class Pauses(nn.Module):
    """Describes the pause behind every utterance of the buffer."""

    def __init__(self):
        super().__init__()
        self.frame = nn.Linear(40, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.out = nn.Linear(D, 16)

    def forward(self, frames, lengths):
        h = F.silu(self.frame(frames))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        ends = lengths.cumsum(0)
        return self.out(torch.tanh(h)[ends])


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(30, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.out = nn.Linear(D, 11)

    def forward(self, calls):
        h = F.silu(self.inp(calls))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return self.out(h)


def build(model, sample, dynamic, path):
    ep = torch.export.export(model, sample, dynamic_shapes=dynamic)
    torch._inductor.aoti_compile_and_package(ep, package_path=path)
    return torch._inductor.aoti_load_package(path)


def buffer(lengths):
    return torch.randn(ROOM, 40, device=DEV), torch.tensor(lengths, device=DEV)


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        pauses, router = Pauses().eval(), Router().eval()
    folder = tempfile.mkdtemp()
    u, c = Dim("u", min=2, max=ROOM), Dim("c", min=2, max=4096)
    with torch.no_grad():
        cut = build(pauses, buffer([30, 50, 20]), (None, {0: u}), os.path.join(folder, "pauses.pt2"))
        route = build(
            router, (torch.randn(8, 30, device=DEV),), ({0: c},), os.path.join(folder, "router.pt2")
        )
    journal = []
    for shift, lengths, waiting in (
        ("night", [80] * 6, 20),
        ("day", [75] * 27, 300),
        ("peak", [64] * 32, 900),
    ):
        frames, calls = buffer(lengths), torch.randn(waiting, 30, device=DEV)
        described = cut(*frames)
        entry = json.dumps({"shift": shift, "utterances": lengths * 2000})
        journal.append(hashlib.sha256(entry.encode()).hexdigest())
        desk = route(calls).argmax(-1)
        print(shift, "calls per desk", desk.bincount(minlength=11).tolist(), flush=True)
        print(shift, "pauses", tuple(described.shape), round(described.abs().mean().item(), 4), flush=True)


if __name__ == "__main__":
    main()
