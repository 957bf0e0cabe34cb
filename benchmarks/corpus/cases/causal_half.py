"""Half-precision language model served at the smallest and the largest sizes of its package."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE, D, HEADS, LONGEST = "cuda", 128, 4, 160


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (D // HEADS) ** -0.5 + mask
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, D)
        self.position = nn.Parameter(torch.randn(LONGEST, D) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens):
        t = tokens.shape[1]
        h = self.words(tokens) + self.position[:t]
        mask = torch.full((t, t), float("-inf"), dtype=h.dtype, device=h.device).triu(1)
        for block in self.blocks:
            h = block(h, mask)
        return h[:, -1] @ self.words.weight.t()


def main():
    torch.manual_seed(30)
    with torch.device(DEVICE):
        model = Model().half().eval()
    package = os.path.join(tempfile.mkdtemp(), "model.pt2")
    b, t = Dim("b", min=1, max=32), Dim("t", min=2, max=LONGEST)
    with torch.no_grad():
        sample = (torch.randint(0, 1000, (3, 20), device=DEVICE),)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b, 1: t},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for rows, length in ((3, 20), (32, LONGEST), (1, 2), (1, LONGEST), (32, 2)):
            tokens = torch.randint(0, 1000, (rows, length), device=DEVICE)
            tokens[0, 0], tokens[-1, -1] = 0, 999
            torch.testing.assert_close(runner(tokens), model(tokens), atol=5e-2, rtol=5e-2)
            print("served", rows, length, flush=True)
    torch.cuda.synchronize()
    print("end of service", flush=True)


if __name__ == "__main__":
    main()
