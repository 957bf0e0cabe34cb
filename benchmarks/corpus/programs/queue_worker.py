"""A worker of a job queue: the parent builds the package, the child serves it on the card it was given."""

import os
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Audio(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.inp = nn.Linear(80, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.out = nn.Linear(d, 30)

    def forward(self, mel):
        h = F.silu(self.inp(mel))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h).mean(1)


def build(package):
    with torch.device("cuda"):
        model, x = Audio().eval(), torch.randn(4, 100, 80)
    with torch.no_grad():
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n", min=2, max=64)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)


def serve(package):
    runner = torch._inductor.aoti_load_package(package)
    y = runner(torch.randn(3, 100, 80, device="cuda"))
    torch.cuda.synchronize()
    print("served", tuple(y.shape), flush=True)


def slot(number):
    """The cards of a slot, as the queue was configured for the old machine with sixteen cards."""
    return {"CUDA_VISIBLE_DEVICES": "0" if number == 0 else str(8 + number)}


def main():
    torch.manual_seed(25)
    package = os.path.join(tempfile.mkdtemp(), "audio.pt2")
    build(package)
    for number in (0, 3):
        print("slot", number, flush=True)
        command = [sys.executable, __file__, package]
        subprocess.run(command, env={**os.environ, **slot(number)}, check=True)


if __name__ == "__main__":
    serve(sys.argv[1]) if len(sys.argv) > 1 else main()
