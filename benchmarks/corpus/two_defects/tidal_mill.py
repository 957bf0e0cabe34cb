"""Tidal mill: power from gauge readings; the new logger writes its channels the other way round."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEV = "cuda"


class Mill(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(15, d)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 2)

    def forward(self, gauge):
        level = torch.tanh(gauge[:, :15] * 0.8)
        return self.out(self.norm(F.gelu(self.inp(level))))


def reading(logger, count):
    """Fifteen channels and a spare one, which no cable leads to."""
    if logger == "old":
        gauge = torch.randn(count, 16, device=DEV)
    else:
        gauge = torch.randn(16, count, device=DEV).t()
    gauge[:, 15] = float("nan")
    return gauge


def main():
    torch.manual_seed(36)
    with torch.device(DEV):
        model = Mill().eval()
        sample = torch.randn(8, 16)
    package = os.path.join(tempfile.mkdtemp(), "mill.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=512)
        exported = torch.export.export(model, (sample,), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for tide, logger in (("spring", "old"), ("neap", "old"), ("storm", "new")):
            gauge = reading(logger, 16)
            torch.testing.assert_close(runner(gauge), model(gauge), atol=1e-2, rtol=1e-2)
            print(tide, "tide agrees", flush=True)
    print("mill stands", flush=True)


if __name__ == "__main__":
    main()
