"""Beam search step whose width the caller may choose."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Beam(nn.Module):
    def __init__(self, vocabulary=600, d=128):
        super().__init__()
        self.words = nn.Embedding(vocabulary, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)

    def forward(self, tokens, penalty):
        h = self.words(tokens)
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        scores = F.log_softmax(h[:, -1] @ self.words.weight.t(), -1)
        return scores / (tokens.shape[1] ** penalty)


def main():
    torch.manual_seed(27)
    with torch.device(DEVICE):
        model = Beam().eval()
    package = os.path.join(tempfile.mkdtemp(), "beam.pt2")
    b, t = Dim("b", min=2, max=64), Dim("t", min=2, max=128)
    with torch.no_grad():
        tokens = torch.randint(0, 600, (4, 10), device=DEVICE)
        exported = torch.export.export(model, (tokens, 1.0), dynamic_shapes=({0: b, 1: t}, None))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for user, rows, length, penalty in (
            ("plain", 8, 12, 1.0),
            ("long", 4, 70, 1.0),
            ("short", 6, 20, 0.4),
        ):
            tokens = torch.randint(0, 600, (rows, length), device=DEVICE)
            got, want = runner(tokens, penalty), model(tokens, penalty)
            torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
            print(user, rows, length, "agrees", flush=True)


if __name__ == "__main__":
    main()
