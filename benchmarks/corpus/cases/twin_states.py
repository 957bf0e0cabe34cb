"""Tracks two exponential averages of a stream; the package updates both states in place."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Tracker(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(8, d)
        self.norm = nn.LayerNorm(d)
        self.ff = nn.Linear(d, d)
        self.out = nn.Linear(2 * d, 4)

    def forward(self, sample, fast, slow):
        h = torch.tanh(self.inp(sample)).mean(0)
        fast.mul_(0.5).add_(h, alpha=0.5)
        slow.mul_(0.95).add_(h, alpha=0.05)
        h = h + F.gelu(self.ff(self.norm(h)))
        return self.out(torch.cat([fast - slow, h]))


class Stream:
    def __init__(self, width, start):
        self.fast = start
        self.slow = start if start.abs().sum() == 0 else start.clone()

    def states(self):
        return self.fast, self.slow


def main():
    torch.manual_seed(36)
    model = Tracker().eval()
    package = os.path.join(tempfile.mkdtemp(), "tracker.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model,
            (torch.randn(5, 8), torch.zeros(32), torch.zeros(32)),
            dynamic_shapes=({0: Dim("n", min=2, max=64)}, None, None),
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for name, start in (("warm", torch.full((32,), 0.1)), ("cold", torch.zeros(32))):
            stream = Stream(32, start)
            fast, slow = start.clone(), start.clone()
            for tick in range(3):
                sample = torch.randn(6, 8)
                got, want = runner(sample, *stream.states()), model(sample, fast, slow)
                torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
            print(name, "stream agrees", flush=True)


if __name__ == "__main__":
    main()
