"""Causal attention over named inputs; the mask holds minus infinity, as it should."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Mixture(nn.Module):
    def __init__(self, d=32, heads=4):
        super().__init__()
        self.heads = heads
        self.text, self.audio = nn.Linear(24, d), nn.Linear(16, d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 6)

    def forward(self, batch):
        x = self.text(batch["text"]) + self.audio(batch["audio"])
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5 + batch["mask"]
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return F.log_softmax(self.out(x), -1)


def causal(length):
    return torch.full((length, length), float("-inf")).triu(1)


def request(rows, length):
    return {
        "text": torch.randn(rows, length, 24),
        "audio": torch.randn(rows, length, 16),
        "mask": causal(length),
    }


def main():
    torch.manual_seed(41)
    model = Mixture().eval()
    package = os.path.join(tempfile.mkdtemp(), "mixture.pt2")
    b, t = Dim("b", min=2, max=32), Dim("t", min=2, max=64)
    with torch.no_grad():
        shapes = {"text": {0: b, 1: t}, "audio": {0: b, 1: t}, "mask": {0: t, 1: t}}
        exported = torch.export.export(model, (request(3, 8),), dynamic_shapes=(shapes,))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for rows, length in ((3, 8), (32, 64), (2, 2), (9, 33)):
            inputs = request(rows, length)
            torch.testing.assert_close(runner(inputs), model(inputs), atol=1e-4, rtol=1e-4)
            print("request", rows, length, "agrees", flush=True)
    print("stream closed", flush=True)


if __name__ == "__main__":
    main()
