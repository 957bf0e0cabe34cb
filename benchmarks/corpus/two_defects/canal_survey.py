"""Canal survey: depth soundings are compared pairwise; buoys without a name have a code of their own."""

import os
import resource
import tempfile

import torch
from torch import nn
from torch.export import Dim

NAMELESS = 9999


class Survey(nn.Module):
    def __init__(self, buoys=120, d=16):
        super().__init__()
        self.buoy = nn.Embedding(buoys, d)
        self.inp = nn.Linear(3, d)
        self.out = nn.Linear(d, 2)

    def forward(self, soundings, buoy, named):
        known = self.buoy(torch.where(named, buoy, 0)) * named.unsqueeze(-1)
        h = torch.tanh(self.inp(soundings) + known)
        alike = (h @ h.t()).softmax(-1)
        return self.out(alike @ h)


def limit_memory(more):
    """At most `more` bytes of address space beyond what is mapped by now."""
    with open("/proc/self/statm") as text:
        mapped = int(text.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, resource.RLIM_INFINITY))


def main():
    torch.manual_seed(10)
    model = Survey().eval()
    package = os.path.join(tempfile.mkdtemp(), "survey.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=50_000)
        sample = (torch.rand(6, 3), torch.arange(6), torch.ones(6, dtype=torch.bool))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        limit_memory(512 << 20)
        for stretch, count in (("lock", 200), ("bend", 900), ("harbour", 14_000)):
            buoy = torch.randint(0, 120, (count,))
            buoy[::5] = NAMELESS
            depth = runner(torch.rand(count, 3), buoy, buoy != NAMELESS)
            print(stretch, count, round(depth.mean().item(), 3), flush=True)
    print("canal surveyed", flush=True)


if __name__ == "__main__":
    main()
