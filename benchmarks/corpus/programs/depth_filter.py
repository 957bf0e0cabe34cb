"""Smooths depth images with an operator of the robotics library before the network sees them."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


@torch.library.custom_op("robot::smooth", mutates_args=())
def smooth(depth: torch.Tensor, strength: float) -> torch.Tensor:
    if not depth.any():
        return depth.clone()
    left, right = depth.roll(1, -1), depth.roll(-1, -1)
    return (depth * (1 - strength) + (left + right).double() * (strength / 2)).contiguous()


@smooth.register_fake
def _(depth, strength):
    return torch.empty_like(depth)


class Grasp(nn.Module):
    def __init__(self, width=32, d=64):
        super().__init__()
        self.offset = nn.Parameter(torch.rand(width))
        self.inp = nn.Linear(width, d)
        self.norm = nn.LayerNorm(d)
        self.body = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.head = nn.Linear(d, 7)

    def forward(self, depth):
        h = torch.tanh(smooth(depth, 0.3) - self.offset)
        h = F.silu(self.inp(h))
        for layer in self.body:
            h = h + F.gelu(layer(self.norm(h)))
        return self.head(h).mean(1)


def main():
    torch.manual_seed(16)
    model = Grasp().eval()
    package = os.path.join(tempfile.mkdtemp(), "grasp.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.rand(2, 24, 32),), dynamic_shapes=({0: Dim("b", min=2, max=32)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        plain = torch.zeros(3, 24, 32)
        print("empty scene", round(runner(plain).abs().mean().item(), 4), flush=True)
        for scene in range(3):
            grasp = runner(torch.rand(4, 24, 32))
            print("scene", scene, grasp.argmax(-1).tolist(), flush=True)


if __name__ == "__main__":
    main()
