"""Digests an archive page by page, as fast as the pages come from the shelf."""

import os
import tempfile
import time

import torch
from torch import nn
from torch.export import Dim


class Digest(nn.Module):
    def __init__(self, words=500, d=48):
        super().__init__()
        self.words = nn.Embedding(words, d)
        self.mix = nn.GRUCell(d, d)

    def forward(self, page, memory):
        return self.mix(self.words(page).mean(1), memory)


def main():
    torch.manual_seed(7)
    model = Digest().eval()
    package = os.path.join(tempfile.mkdtemp(), "digest.pt2")
    sample = (torch.randint(0, 500, (3, 20)), torch.zeros(3, 48))
    with torch.no_grad():
        n, t = Dim("n", min=1, max=16), Dim("t", min=2, max=256)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n, 1: t}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        digest = torch._inductor.aoti_load_package(package)
        memory = torch.zeros(5, 48)
        for page in range(8):
            time.sleep(1.5)
            memory = digest(torch.randint(0, 500, (5, 90)), memory)
            print("page", page, round(float(memory.norm()), 3), flush=True)
    print("archive read", flush=True)


if __name__ == "__main__":
    main()
