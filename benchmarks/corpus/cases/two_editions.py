"""Serves two editions of a headline model from one package, swapping weights under a side-stream feed."""

import os
import tempfile

import torch
import torch.nn as nn
from torch.export import Dim


class Headline(nn.Module):
    def __init__(self, words=5000, width=96):
        super().__init__()
        self.emb = nn.EmbeddingBag(words, width, mode="mean")
        self.net = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 20))

    def forward(self, words, offsets):
        return self.net(self.emb(words, offsets))


class Plain(nn.Module):
    """The same without bags: every headline has ten words."""

    def __init__(self, inner):
        super().__init__()
        self.table, self.net = inner.emb.weight, inner.net

    def forward(self, words):
        return self.net(self.table[words].mean(1))


class Feed:
    def __init__(self, depth, rows):
        self.stream = torch.cuda.Stream()
        self.slots = [torch.zeros(rows, 10, dtype=torch.long, device="cuda") for _ in range(depth)]
        self.ready = [torch.cuda.Event() for _ in range(depth)]
        self.free = [torch.cuda.Event() for _ in range(depth)]

    def put(self, k, host):
        with torch.cuda.stream(self.stream):
            self.free[k].wait(self.stream)
            self.slots[k][: len(host)].copy_(host, non_blocking=True)
            self.ready[k].record(self.stream)

    def take(self, k, n):
        self.ready[k].wait()
        return self.slots[k][:n]

    def done(self, k):
        self.free[k].record()


def edition(seed):
    torch.manual_seed(seed)
    return Plain(Headline()).cuda().eval()


def main():
    editions = {"morning": edition(1), "evening": edition(2)}
    package = os.path.join(tempfile.mkdtemp(), "headline.pt2")
    with torch.no_grad():
        sample = torch.randint(0, 5000, (32, 10), device="cuda")
        ep = torch.export.export(
            editions["morning"], (sample,), dynamic_shapes=({0: Dim("n", min=2, max=4096)},)
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=package)
    run = torch._inductor.aoti_load_package(package)
    frozen = {
        name: {k: v.detach().clone() for k, v in m.state_dict().items()} for name, m in editions.items()
    }
    feed, last = Feed(2, 4096), {}
    for turn in range(8):
        name = "morning" if turn % 4 < 2 else "evening"
        run.load_constants(frozen[name], check_full_update=True, user_managed=True)
        host = torch.randint(0, 5000, (500 * (turn % 2) + 700, 10)).pin_memory()
        feed.put(turn % 2, host)
        score = run(feed.take(turn % 2, len(host)))
        feed.done(turn % 2)
        canary = run(sample)
        with torch.no_grad():
            off = (score - editions[name](host.cuda())).abs().max().item()
        moved = (canary - last.get("canary", canary)).abs().max().item()
        last["canary"] = canary
        print(
            f"turn {turn} {name}: {len(host)} headlines, off {off:.1e}, canary moved {moved:.3f}", flush=True
        )
        assert off < 1e-2, f"{name} edition is off by {off}"
    print("both editions served")


if __name__ == "__main__":
    main()
