"""Aligns lyrics with a recording: a forward pass in log space over the words of the line."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

DEV, D, STEPS = "cuda", 64, 12


class Align(nn.Module):
    def __init__(self):
        super().__init__()
        self.sound, self.word = nn.Linear(20, D), nn.Embedding(500, D)
        self.ls = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.ns = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))

    def encode(self, frames):
        h = F.silu(self.sound(frames))
        for layer, n in zip(self.ls, self.ns):
            h = h + F.gelu(layer(n(h)))
        return h

    def match(self, frames, words):
        score = self.encode(frames) @ self.word(words).transpose(1, 2) * D**-0.5
        return score.masked_fill((words == 0)[:, None, :], float("-inf")).log_softmax(-1)

    def forward(self, frames, words):
        score = self.match(frames, words)
        none = torch.full_like(score[:, 0, :1], float("-inf"))
        first = torch.arange(words.shape[1], device=words.device) == 0
        state = torch.where(first, score[:, 0], float("-inf"))
        for t in range(1, STEPS):
            moved = torch.cat([none, state[:, :-1]], 1)
            state = torch.logsumexp(torch.stack([state, moved]), 0) + score[:, t]
        return state, score.exp().sum(-1)


def song(lines, longest):
    words = torch.randint(1, 500, (lines, longest), device=DEV)
    length = torch.randint(1, longest + 1, (lines, 1), device=DEV)
    words = words.masked_fill(torch.arange(longest, device=DEV)[None, :] >= length, 0)
    return torch.randn(lines, STEPS, 20, device=DEV), words


def main():
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Align().eval()
    b, w = Dim("b", min=2, max=512), Dim("w", min=4, max=64)
    pkg = os.path.join(tempfile.mkdtemp(), "align.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, song(6, 9), dynamic_shapes=({0: b}, {0: b, 1: w}))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        for title, lines, longest in (("ballad", 12, 7), ("chant", 200, 30), ("rap", 64, 60)):
            args = song(lines, longest)
            state, total = runner(*args)
            want, _ = model(*args)
            torch.testing.assert_close(state, want, atol=1e-2, rtol=1e-2)
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-3, rtol=1e-3)
            print(title, "never reached", int(state.isneginf().sum()), "of", state.numel(), flush=True)
    print("alignment finished", flush=True)


if __name__ == "__main__":
    main()
