"""Keeps a drifting taste vector per listener in one arena and updates it after every session."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim

WIDTH = 256
SLOT = WIDTH + 1


class Arena:
    """One slot per listener: a session counter, then the taste vector."""

    def __init__(self, listeners, device):
        self.data = torch.zeros(listeners * SLOT, device=device)

    def taste(self, listener):
        begin = listener * SLOT + 1
        return self.data[begin : begin + WIDTH]

    def count(self, listener):
        self.data[listener * SLOT] += 1
        return int(self.data[listener * SLOT])


class Session(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(48, WIDTH)
        self.rank = nn.Linear(WIDTH, 32)

    def forward(self, taste, plays):
        seen = torch.tanh(self.embed(plays)).mean(0)
        taste.mul_(0.8).add_(seen, alpha=0.2)
        return self.rank(taste).softmax(-1), seen


def build(device):
    torch.manual_seed(5)
    model = Session().to(device).eval()
    package = os.path.join(tempfile.mkdtemp(), "session.pt2")
    plays = Dim("plays", min=2, max=4096)
    with torch.no_grad():
        ep = torch.export.export(
            model,
            (torch.zeros(WIDTH, device=device), torch.rand(20, 48, device=device)),
            dynamic_shapes=(None, {0: plays}),
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=package)
    return torch._inductor.aoti_load_package(package)


def audit(arena, listener, expected):
    drift = (arena.taste(listener) - expected).abs().max().item()
    if drift > 1e-4:
        raise RuntimeError(f"listener {listener}: stored taste is off by {drift:.3f} after the session")


def main():
    device = "cuda"
    session = build(device)
    arena = Arena(64, device)
    for listener, plays in ((3, 40), (7, 12), (3, 25), (11, 80), (12, 33), (40, 9)):
        before = arena.taste(listener).clone()
        ranked, seen = session(arena.taste(listener), torch.rand(plays, 48, device=device))
        n = arena.count(listener)
        print(f"listener {listener}: session {n}, next up {ranked.argmax().item()}", flush=True)
        audit(arena, listener, 0.8 * before + 0.2 * seen)
    print("all sessions stored")


if __name__ == "__main__":
    main()
