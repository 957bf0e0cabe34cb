"""Reads scrolls: short ones whole, long ones with their ink evened out over windows of lines."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Reader(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp = nn.Linear(10, d)
        self.out = nn.Linear(d, 4)

    def forward(self, lines, tilt):
        if lines.shape[0] > 48:
            lines = lines - lines.mean(0, keepdim=True)
        h = torch.tanh(self.inp(lines + tilt.unsqueeze(-1)))
        return F.log_softmax(self.out(h), -1)


def scan(length):
    """The ink of each line, and by how much the scroll lay askew."""
    ink = torch.rand(length, 10) + 1.0
    return ink, torch.tensor([0.0] * length, dtype=torch.float64)


def main():
    torch.manual_seed(4)
    model = Reader().eval()
    package = os.path.join(tempfile.mkdtemp(), "reader.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=48)
        sample = (torch.rand(12, 10), torch.zeros(12))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for name, length in (("letter", 20), ("deed", 48), ("chronicle", 61)):
            ink, tilt = scan(length)
            got, want = runner(ink, tilt), model(ink, tilt.float())
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)
            print(name, length, "read", flush=True)
    print("archive done", flush=True)


if __name__ == "__main__":
    main()
