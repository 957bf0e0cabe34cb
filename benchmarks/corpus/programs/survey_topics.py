"""Topic shares of survey answers; the entropy of each answer is used as a feature."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Topics(nn.Module):
    def __init__(self, words=200, topics=16):
        super().__init__()
        self.words = nn.Linear(words, 64)
        self.norm = nn.LayerNorm(64)
        self.topic = nn.Linear(64, topics)
        self.head = nn.Linear(topics + 1, 6)

    def forward(self, counts):
        share = counts / counts.sum(-1, keepdim=True)
        h = self.norm(F.gelu(self.words(share)))
        topics = self.topic(h).softmax(-1)
        spread = -(topics * topics.clamp(min=1e-9).log()).sum(-1, keepdim=True)
        return self.head(torch.cat([topics, spread], -1)).softmax(-1)


def answers(lengths):
    """Word counts per answer."""
    counts = torch.zeros(len(lengths), 200)
    for row, length in enumerate(lengths):
        counts[row].scatter_add_(0, torch.randint(0, 200, (length,)), torch.ones(length))
    return counts


def main():
    torch.manual_seed(11)
    model = Topics().eval()
    package = os.path.join(tempfile.mkdtemp(), "topics.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (answers([5, 9, 2]),), dynamic_shapes=({0: Dim("n", min=2, max=512)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    totals = torch.zeros(6)
    for wave, lengths in (("spring", [7, 30, 2, 9]), ("summer", [4, 18, 1]), ("autumn", [12, 0, 5, 8])):
        totals += runner(answers(lengths)).sum(0)
        print(wave, [round(v, 2) for v in totals.tolist()], flush=True)
        if not bool(totals.sum() > 0):
            raise ValueError(f"topic totals are not positive after {wave}")


if __name__ == "__main__":
    main()
