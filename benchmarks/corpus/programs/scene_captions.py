"""Captions for long videos: frame positions are learned, clips come from several archives."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE, FRAMES, D = "cuda", 96, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        x = x + self.o((q @ k.transpose(1, 2) / D**0.5).softmax(-1) @ v)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(64, D)
        self.position = nn.Parameter(torch.randn(FRAMES, D) * 0.5)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(D, 400)

    def forward(self, frames):
        h = torch.tanh(self.inp(frames)) + self.position[: frames.shape[1]]
        return F.log_softmax(self.head(self.blocks(h).mean(1)), -1)


def previous(model, frames):
    """The old service cut clips to the trained length."""
    return model(frames[:, :FRAMES])


def main():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = Captioner().eval()
    package = os.path.join(tempfile.mkdtemp(), "captioner.pt2")
    b, t = Dim("b", min=1, max=64), Dim("t", min=2, max=FRAMES)
    with torch.no_grad():
        sample = (torch.randn(2, 24, 64, device=DEVICE),)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: b, 1: t},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for archive, clips, length in (("news", 4, 30), ("sports", 2, 96), ("theatre", 3, 131)):
            frames = torch.randn(clips, length, 64, device=DEVICE)
            got, want = runner(frames), previous(model, frames)
            torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
            print(archive, clips, length, "agrees", flush=True)


if __name__ == "__main__":
    main()
