"""Seismic traces go through a filter operator of the institute before the picker network."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


@torch.library.custom_op("seis::filter_bank", mutates_args=())
def filter_bank(traces: torch.Tensor, bands: int) -> torch.Tensor:
    """(n, t) traces to (n, bands, t) band-passed ones; bands are made one after another."""
    made = [torch.cumsum(traces * (band + 1) / bands, -1).cos() for band in range(bands)]
    return torch.stack(made).transpose(0, 1)


@filter_bank.register_fake
def _(traces, bands):
    return traces.new_empty(traces.shape[0], bands, traces.shape[1])


class Picker(nn.Module):
    def __init__(self, length=64, bands=6, d=96):
        super().__init__()
        self.window = nn.Parameter(torch.rand(bands, length))
        self.inp = nn.Linear(length, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 3)

    def forward(self, traces):
        h = torch.tanh(filter_bank(traces * 0.5, 6) * self.window)
        h = F.silu(self.inp(h))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h.amax(1))


def main():
    torch.manual_seed(11)
    with torch.device(DEVICE):
        model = Picker().eval()
    package = os.path.join(tempfile.mkdtemp(), "picker.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(4, 64, device=DEVICE),), dynamic_shapes=({0: Dim("n", min=1, max=512)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for station, count in (("test", 1), ("coast", 30), ("ridge", 8)):
            traces = torch.randn(count, 64, device=DEVICE)
            got, want = runner(traces), model(traces)
            torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
            print(station, count, "agrees", flush=True)


if __name__ == "__main__":
    main()
