"""Vibration monitor; the notch filter comes from the plant's operator library."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim


@torch.library.custom_op("plant::notch", mutates_args=())
def notch(x: torch.Tensor, strength: float) -> torch.Tensor:
    level = x.mean(dim=1, keepdim=True)
    if bool((level.abs() > 0.5).any()):  # hum: take it out before filtering
        x.sub_(level, alpha=strength)
    return torch.tanh(x)


@notch.register_fake
def _(x, strength):
    return torch.empty_like(x)


class Monitor(nn.Module):
    def __init__(self, d=56):
        super().__init__()
        self.inp, self.mid, self.head = nn.Linear(20, d), nn.Linear(d, d), nn.Linear(d, 3)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        h = self.inp(x)
        raw = h * 2.0 + 1.0
        f = notch(h, 0.9)
        return self.head(self.norm(raw + F.silu(self.mid(f)) * raw)).mean(1)


def reference(model, x):
    h = model.inp(x)
    raw = h * 2.0 + 1.0
    f = notch(h.clone(), 0.9)
    return model.head(model.norm(raw + F.silu(model.mid(f)) * raw)).mean(1)


def main():
    torch.manual_seed(0)
    model = Monitor().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "monitor.pt2")
    with torch.no_grad():
        ep = torch.export.export(
            model, (torch.randn(4, 50, 20) * 0.1,), dynamic_shapes=({0: Dim("b", min=2, max=64)},)
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    print("loaded", flush=True)
    with torch.no_grad():
        for hour, (n, hum) in enumerate([(4, 0.0), (7, 0.0), (5, 3.0)]):
            x = torch.randn(n, 50, 20, generator=torch.Generator().manual_seed(hour)) * 0.1 + hum
            torch.testing.assert_close(runner(x), reference(model, x), atol=1e-4, rtol=1e-4)
            print("hour", hour, "ok", flush=True)


if __name__ == "__main__":
    main()
