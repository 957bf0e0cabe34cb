"""Dialogue state: the encoding of the last spoken token of each turn is classified."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class StateTracker(nn.Module):
    def __init__(self, vocabulary=600, d=48):
        super().__init__()
        self.words = nn.Embedding(vocabulary, d)
        self.mix = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 9)

    def forward(self, tokens, lengths):
        h = self.words(tokens)
        for layer in self.mix:
            h = h + F.gelu(layer(self.norm(h)))
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, h.shape[-1])
        return self.head(h.gather(1, last).squeeze(1))


def turns(lengths, cut):
    """Token ids padded to the longest turn, at most `cut` long."""
    width = min(max(lengths), cut)
    tokens = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in enumerate(lengths):
        spoken = min(length, width)
        tokens[row, :spoken] = torch.randint(1, 600, (spoken,))
    return tokens, torch.tensor(lengths)


def main():
    torch.manual_seed(9)
    model = StateTracker().eval()
    package = os.path.join(tempfile.mkdtemp(), "state.pt2")
    b, t = Dim("b", min=2, max=128), Dim("t", min=2, max=64)
    with torch.no_grad():
        exported = torch.export.export(model, turns([4, 9, 7], 64), dynamic_shapes=({0: b, 1: t}, {0: b}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for call, lengths in enumerate(([3, 12, 8], [20, 64, 5, 31], [18, 7, 97, 40, 12])):
        states = runner(*turns(lengths, 64))
        print("call", call, states.argmax(-1).tolist(), flush=True)


if __name__ == "__main__":
    main()
