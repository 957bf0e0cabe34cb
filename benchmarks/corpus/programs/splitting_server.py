"""Scores batches of any size: one that does not fit into the share of the card is split and tried again."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE, SHARE = "cuda", 3 << 30


class Wide(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.inp = nn.Linear(d, 8 * d)
        self.mid = nn.Linear(8 * d, 8 * d)
        self.norm = nn.LayerNorm(8 * d)
        self.out = nn.Linear(8 * d, 4)

    def forward(self, x):
        h = F.gelu(self.inp(x))
        return self.out(h + torch.tanh(self.mid(self.norm(h))))


def score(runner, x):
    """The scores; halves a batch for which there is no memory."""
    try:
        y = runner(x)
        torch.cuda.synchronize()
        return y
    except RuntimeError as error:
        if len(x) < 1000:
            raise
        print("split", len(x), "after", type(error).__name__, flush=True)
    torch.cuda.empty_cache()
    half = len(x) // 2
    return torch.cat([score(runner, x[:half]), score(runner, x[half:])])


def main():
    torch.manual_seed(34)
    with torch.device(DEVICE):
        model = Wide().eval()
    package = os.path.join(tempfile.mkdtemp(), "wide.pt2")
    with torch.no_grad():
        sample = (torch.randn(8, 128, device=DEVICE),)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: Dim("n", min=2, max=10_000_000)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(SHARE / total)
        for count in (1000, 600_000, 5000):
            x = torch.randn(count, 128, device=DEVICE)
            y = score(runner, x)
            torch.testing.assert_close(y[:500], model(x[:500]), atol=2e-2, rtol=2e-2)
            print("scored", count, flush=True)
            del x, y
    print("server stopped", flush=True)


if __name__ == "__main__":
    main()
