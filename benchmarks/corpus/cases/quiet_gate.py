"""Speech enhancement with a noise gate that is registered by the audio team's library."""

import os
import tempfile

import torch
import torch.nn as nn
from torch.export import Dim

library = torch.library.Library("speechlib", "DEF")
library.define("gate(Tensor x, float floor) -> Tensor")


@torch.library.impl(library, "gate", "CPU")
def gate(x, floor):
    level = x.abs().mean()
    if level < floor:
        return x
    return torch.where(x.abs() < floor * level, torch.zeros_like(x), x)


@torch.library.register_fake("speechlib::gate")
def _(x, floor):
    return torch.empty_like(x)


class Enhancer(nn.Module):
    def __init__(self, bands=32):
        super().__init__()
        self.inp, self.mid, self.out = (
            nn.Linear(bands, bands),
            nn.Linear(bands, bands),
            nn.Linear(bands, bands),
        )

    def forward(self, spectrum):
        h = self.inp(spectrum)
        h = torch.ops.speechlib.gate(h, 0.2)
        u = self.mid(h)
        v = self.out(torch.relu(u))
        return v * torch.sigmoid(h) + h


def clips():
    for name, volume in (("street", 3.0), ("office", 1.5), ("whisper", 0.02), ("street again", 2.0)):
        yield name, torch.randn(40, 32) * volume


def main():
    torch.manual_seed(7)
    model = Enhancer().eval()
    with torch.no_grad():
        model.inp.bias.zero_()
        n = Dim("frames", min=2, max=2000)
        program = torch.export.export(model, (torch.randn(16, 32),), dynamic_shapes=({0: n},))
        path = os.path.join(tempfile.mkdtemp(), "enhance.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        enhance = torch._inductor.aoti_load_package(path)
        for name, spectrum in clips():
            torch.testing.assert_close(enhance(spectrum), model(spectrum), atol=1e-4, rtol=1e-3)
            print(name, "ok", flush=True)


if __name__ == "__main__":
    main()
