"""Detects pulses in radio data; the new receiver delivers half precision."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Detector(nn.Module):
    def __init__(self, channels=64, d=128):
        super().__init__()
        self.register_buffer("gain", torch.rand(channels) + 0.5)
        self.inp = nn.Linear(channels, d)
        self.norm = nn.LayerNorm(d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.out = nn.Linear(d, 2)

    def forward(self, spectrum):
        h = torch.log1p(spectrum.abs() * self.gain)
        h = F.silu(self.inp(h))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h)


class Receiver:
    def __init__(self, name, dtype):
        self.name, self.dtype = name, dtype

    def spectra(self, count):
        return torch.randn(count, 64, device=DEVICE).to(self.dtype)


def main():
    torch.manual_seed(2)
    with torch.device(DEVICE):
        model = Detector().eval()
    package = os.path.join(tempfile.mkdtemp(), "detector.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(8, 64, device=DEVICE),), dynamic_shapes=({0: Dim("n", min=2, max=4096)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for receiver in (Receiver("dish", torch.float32), Receiver("array", torch.float16)):
            spectra = receiver.spectra(1024)
            got, want = runner(spectra), model(spectra.float())
            torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
            print(receiver.name, "agrees", flush=True)


if __name__ == "__main__":
    main()
