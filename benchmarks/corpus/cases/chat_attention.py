"""Chat ranking with a visibility mask: muted speakers are hidden from attention."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, visible):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
        scores = scores.masked_fill(~visible[:, None, None, :], float("-inf"))
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class Ranker(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.words = nn.Embedding(500, d)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(2))
        self.head = nn.Linear(d, 1)

    def forward(self, messages, visible):
        h = self.words(messages)
        for block in self.blocks:
            h = block(h, visible)
        return self.head(h.mean(1)).squeeze(-1)


def room(speakers, muted):
    messages = torch.randint(0, 500, (len(speakers), 12))
    visible = torch.stack([torch.tensor([s not in muted for s in line]) for line in speakers])
    return messages, visible


def main():
    torch.manual_seed(14)
    model = Ranker().eval()
    package = os.path.join(tempfile.mkdtemp(), "chat.pt2")
    b = Dim("b", min=2, max=64)
    lines = ["abcabcabcabc", "aabbccaabbcc", "bbbbbbbbbbbb"]
    with torch.no_grad():
        exported = torch.export.export(model, room(lines, ""), dynamic_shapes=({0: b}, {0: b}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for muted in ("", "c", "ac", "b"):
        scores = runner(*room(lines, muted))
        order = sorted(range(len(lines)), key=lambda i: -scores[i].item())
        if scores.sort().values.isnan().any():
            raise RuntimeError(f"no order for the rooms with {muted!r} muted")
        print("muted", muted or "nobody", order, flush=True)


if __name__ == "__main__":
    main()
