"""Document attention restricted to segments; padding gets a segment of its own."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE, D, HEADS = "cuda", 128, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x, bias):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (D // HEADS) ** -0.5 + bias
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Documents(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(2000, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(D, 9)

    def forward(self, tokens, segment):
        same = segment[:, :, None] == segment[:, None, :]
        allowed = same & (segment > 0)[:, None, :]
        bias = torch.zeros_like(allowed, dtype=torch.float32).masked_fill(~allowed, float("-inf"))
        h = self.words(tokens)
        for block in self.blocks:
            h = block(h, bias.unsqueeze(1))
        return F.log_softmax(self.out(h.mean(1)), -1)


def documents(lengths, width):
    segment = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in enumerate(lengths):
        segment[row, :length] = 1 + torch.arange(length) // 10
    tokens = torch.randint(1, 2000, segment.shape) * (segment > 0)
    return tokens.to(DEVICE), segment.to(DEVICE)


def main():
    torch.manual_seed(10)
    with torch.device(DEVICE):
        model = Documents().eval()
    package = os.path.join(tempfile.mkdtemp(), "documents.pt2")
    b, t = Dim("b", min=2, max=64), Dim("t", min=2, max=256)
    with torch.no_grad():
        exported = torch.export.export(
            model, documents([20, 20, 20], 20), dynamic_shapes=({0: b, 1: t}, {0: b, 1: t})
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for source, lengths, width in (
        ("forms", [30] * 6, 30),
        ("mails", [64] * 9, 64),
        ("letters", [40, 12, 40], 40),
    ):
        y = runner(*documents(lengths, width)).exp().sum(-1)
        torch.cuda.synchronize()
        if not bool((y - 1).abs().max() < 1e-2):
            raise RuntimeError(f"probabilities of {source} do not add up: {y.tolist()}")
        print(source, len(lengths), "ok", flush=True)


if __name__ == "__main__":
    main()
