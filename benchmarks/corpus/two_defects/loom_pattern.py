"""Weaving mill: rates patterns; since yesterday some come from the scanner, sideways."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Loom(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(20, d)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 3)

    def forward(self, threads):
        h = F.gelu(self.inp(torch.tanh(threads * 2.0)))
        return self.out(self.norm(h))


def polish(model, rate):
    """One more step of training after the release."""
    with torch.enable_grad():
        model(torch.randn(16, 20)).pow(2).mean().backward()
    for weight in model.parameters():
        weight.data -= rate * weight.grad


def main():
    torch.manual_seed(7)
    model = Loom().eval()
    package = os.path.join(tempfile.mkdtemp(), "loom.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(8, 20),), dynamic_shapes=({0: Dim("rows", min=2, max=128)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        polish(model, rate=1e-6)
        for source in ("drawn", "drawn", "scanned"):
            pattern = torch.randn(12, 20) if source == "drawn" else torch.randn(20, 12).t()
            torch.testing.assert_close(runner(pattern), model(pattern), atol=1e-4, rtol=1e-3)
            print(source, "pattern rated", flush=True)
    print("mill stops", flush=True)


if __name__ == "__main__":
    main()
