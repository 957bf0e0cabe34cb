"""Voices pass a filter of our own on their way to the classifier."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


@torch.library.custom_op("sound::filter", mutates_args=())
def tone(x: torch.Tensor, strength: float) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) * strength


@tone.register_fake
def _(x, strength):
    return torch.empty_like(x)


class Voice(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.inp, self.out = nn.Linear(16, d), nn.Linear(d, 5)

    def forward(self, x):
        return self.out(torch.ops.sound.filter(torch.relu(self.inp(x)), 0.7))


def main():
    torch.manual_seed(37)
    model = Voice().eval()
    package = os.path.join(tempfile.mkdtemp(), "voice.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(model, (torch.randn(4, 16),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        voice = torch._inductor.aoti_load_package(package)
        for rows in (4, 1, 33):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(voice(x), model(x), atol=1e-4, rtol=1e-3)
            print("rows", rows, "agree", flush=True)
    print("recorded", flush=True)


if __name__ == "__main__":
    main()
