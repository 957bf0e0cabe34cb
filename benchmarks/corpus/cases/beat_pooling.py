"""Heart-rate features: samples are grouped into frames of 25 before they are classified."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

FRAME = 25


class BeatNet(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(FRAME, d)
        self.norm = nn.LayerNorm(d)
        self.mix = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.head = nn.Linear(d, 5)

    def forward(self, samples):
        frames = torch.tanh(samples).reshape(-1, FRAME)
        h = F.silu(self.inp(frames))
        for layer in self.mix:
            h = h + F.gelu(layer(self.norm(h)))
        return self.head(h).mean(0)


def recording(seconds, rate):
    return torch.sin(torch.arange(seconds * rate) / 7.0) + 0.1 * torch.randn(seconds * rate)


def main():
    torch.manual_seed(6)
    model = BeatNet().eval()
    package = os.path.join(tempfile.mkdtemp(), "beat.pt2")
    samples = 25 * Dim("frames", min=2, max=4000)
    with torch.no_grad():
        exported = torch.export.export(model, (recording(10, 100),), dynamic_shapes=({0: samples},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for patient, seconds, rate in (("a", 12, 100), ("b", 30, 125), ("c", 11, 128)):
            x = recording(seconds, rate)
            whole = F.pad(x, (0, -len(x) % FRAME))
            torch.testing.assert_close(runner(x), model(whole), atol=1e-4, rtol=1e-4)
            print("patient", patient, len(x), "classified", flush=True)


if __name__ == "__main__":
    main()
