"""Recommends from a basket: bags of tag ids with offsets, summed per basket."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Baskets(nn.Module):
    def __init__(self, tags=900, d=32):
        super().__init__()
        self.tags = nn.EmbeddingBag(tags, d, mode="sum", include_last_offset=True)
        self.season = nn.Embedding(12, d)
        self.norm = nn.LayerNorm(d)
        self.body = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.head = nn.Linear(d, 20)

    def forward(self, ids, offsets, month):
        h = self.tags(ids, offsets) + self.season(month)
        return F.log_softmax(self.head(h + self.body(self.norm(h))), -1)


class TagIndex:
    """Gives every tag a number; unseen tags get the next free one."""

    def __init__(self, known):
        self.next = known
        self.extra = {}

    def __call__(self, tag):
        if isinstance(tag, int):
            return tag
        if tag not in self.extra:
            self.extra[tag] = self.next
            self.next += 1
        return self.extra[tag]


def main():
    torch.manual_seed(8)
    model = Baskets().eval()
    package = os.path.join(tempfile.mkdtemp(), "baskets.pt2")
    n, b = Dim("n", min=2, max=100_000), Dim("b", min=2, max=512)
    with torch.no_grad():
        sample = (torch.randint(0, 900, (30,)), torch.arange(0, 31, 5), torch.randint(0, 12, (6,)))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: b + 1}, {0: b}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    index = TagIndex(900)
    days = [[3, 5, 899, 40], [17, 2, 9, 71, 8, 10], [5, "vegan", 12, "gift", 1, 7]]
    for day, tags in enumerate(days):
        ids = torch.tensor([index(tag) for tag in tags] * 4)
        offsets = torch.arange(0, len(ids) + 1, len(tags))
        scores = runner(ids, offsets, torch.full((4,), day))
        print("day", day, scores.argmax(-1).tolist(), flush=True)


if __name__ == "__main__":
    main()
