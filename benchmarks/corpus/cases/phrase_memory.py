"""Phrase memory: the best matching entry of a shared code book is mixed into every token."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Memory(nn.Module):
    def __init__(self, codes=256, d=48):
        super().__init__()
        self.words = nn.Embedding(400, d)
        self.mix = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.values = nn.Parameter(torch.randn(codes, d) * 0.1)
        self.out = nn.Linear(d, 10)

    def forward(self, tokens, book):
        h = self.words(tokens)
        for layer in self.mix:
            h = h + F.gelu(layer(h))
        best = (h @ book.t()).argmax(-1)
        h = h + self.values[best]
        return F.log_softmax(self.out(h.mean(1)), -1)


class CodeBook:
    """Entries are appended while the service runs."""

    def __init__(self, d):
        self.entries = F.normalize(torch.randn(200, d), dim=-1)

    def append(self, count, scale=1.0):
        new = F.normalize(torch.randn(count, self.entries.shape[1]), dim=-1) * scale
        self.entries = torch.cat([self.entries, new])


def main():
    torch.manual_seed(13)
    model = Memory().eval()
    package = os.path.join(tempfile.mkdtemp(), "memory.pt2")
    book = CodeBook(48)
    b, t, n = Dim("b", min=2, max=64), Dim("t", min=2, max=128), Dim("n", min=2, max=4096)
    with torch.no_grad():
        sample = (torch.randint(0, 400, (4, 10)), book.entries)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b, 1: t}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for week, grown in enumerate((0, 40, 90)):
        book.append(grown, scale=2.0)
        y = runner(torch.randint(0, 400, (6, 21)), book.entries)
        print("week", week, len(book.entries), y.argmax(-1).tolist(), flush=True)


if __name__ == "__main__":
    main()
