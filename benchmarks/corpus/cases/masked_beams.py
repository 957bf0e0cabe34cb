"""Beam search step: impossible continuations carry -inf, missing sensors carry NaN."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(14)


class Step(nn.Module):
    def __init__(self, vocab=120, d=48):
        super().__init__()
        self.tok, self.sensor = nn.Embedding(vocab, d), nn.Linear(6, d)
        self.n, self.o = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, last, allowed, sensors):
        s = torch.where(sensors.isnan(), torch.zeros_like(sensors), sensors)
        h = self.n(self.tok(last) + F.gelu(self.sensor(s)))
        logits = self.o(h).masked_fill(~allowed, float("-inf"))
        return F.log_softmax(logits, -1), sensors.sum(-1)


def main():
    model = Step().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "beam.pt2")
    b = Dim("b", min=2, max=64)

    def make(n, seed):
        g = torch.Generator().manual_seed(seed)
        allowed = torch.rand(n, 120, generator=g) > 0.4
        allowed[:, 0] = True
        sensors = torch.randn(n, 6, generator=g)
        sensors[0, 1] = float("nan")
        return torch.randint(0, 120, (n,), generator=g), allowed, sensors

    with torch.no_grad():
        ep = torch.export.export(model, make(4, 0), dynamic_shapes=({0: b}, {0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        for step, n in enumerate((4, 9, 2)):
            args = make(n, step)
            for got, want in zip(runner(*args), model(*args)):
                torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4, equal_nan=True)
            print("step", step, "ok", flush=True)
    print("search finished", flush=True)


if __name__ == "__main__":
    main()
