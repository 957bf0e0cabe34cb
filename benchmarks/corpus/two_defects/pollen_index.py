"""Pollen forecast: an operator orders the counts by station; the server limits its own memory."""

import os
import resource
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


@torch.library.custom_op("pollen::by_station", mutates_args=())
def by_station(counts: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return (counts.t() * gain.unsqueeze(-1)).contiguous().t()


@by_station.register_fake
def _(counts, gain):
    return torch.empty_like(counts)


class Pollen(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(7) + 0.5)
        self.weight = nn.Parameter(torch.rand(7) * 2.0)
        self.inp = nn.Linear(7, d)
        self.out = nn.Linear(d, 4)

    def forward(self, counts):
        ordered = torch.ops.pollen.by_station(torch.log1p(counts), self.gain)
        h = self.inp(torch.tanh(ordered * self.weight))
        return self.out(F.gelu(h))


def limit_memory(more):
    """At most `more` bytes of address space beyond what is mapped by now."""
    with open("/proc/self/statm") as text:
        mapped = int(text.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, resource.RLIM_INFINITY))


def main():
    torch.manual_seed(9)
    model = Pollen().eval()
    package = os.path.join(tempfile.mkdtemp(), "pollen.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=256)
        exported = torch.export.export(model, (torch.rand(6, 7),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        limit_memory(1536 << 20)
        print("loaded", runner(torch.zeros(2, 7)).shape[0], flush=True)
        counts = torch.rand(30, 7) * 40
        torch.testing.assert_close(runner(counts), model(counts), atol=1e-4, rtol=1e-3)
    print("forecast sent", flush=True)


if __name__ == "__main__":
    main()
