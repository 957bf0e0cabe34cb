"""Translation quality estimates for batches of every size that the package allows."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

LIMIT = 96


class Quality(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.words = nn.Embedding(LIMIT, d)
        self.position = nn.Parameter(torch.randn(LIMIT, d) * 0.02)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 1)

    def forward(self, tokens, weights):
        h = self.words(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return (self.out(h).squeeze(-1) * weights).sum(1) / weights.sum(1).clamp(min=1e-6)


def main():
    torch.manual_seed(40)
    model = Quality().eval()
    package = os.path.join(tempfile.mkdtemp(), "quality.pt2")
    b, t = Dim("b", min=1, max=64), Dim("t", min=2, max=LIMIT)
    with torch.no_grad():
        sample = (torch.randint(0, LIMIT, (4, 12)), torch.rand(4, 12))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b, 1: t}, {0: b, 1: t}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for rows, length in ((64, LIMIT), (2, 2), (1, 40), (1, LIMIT)):
            tokens = torch.randint(0, LIMIT, (rows, length))
            tokens[0, 0], tokens[0, -1] = 0, LIMIT - 1
            weights = torch.rand(rows, length)
            weights[-1] = 0.0
            torch.testing.assert_close(runner(tokens, weights), model(tokens, weights), atol=1e-4, rtol=1e-4)
            print("batch", rows, length, "ok", flush=True)
    print("all sizes done", flush=True)


if __name__ == "__main__":
    main()
