"""Carousel of tenants: each gets a runner of its own, and the memory of the process is limited."""

import os
import resource
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Tenant(nn.Module):
    def __init__(self, d=1024):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(16, d), nn.Linear(d, 8 * d), nn.Linear(8 * d, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.mid(torch.relu(self.inp(x)))))


class Carousel:
    """The runner of the tenant that is asked for; it replaces the last one."""

    def __init__(self, package):
        self.package, self.current, self.answered = package, None, []

    def turn(self, tenant):
        self.current = torch._inductor.aoti_load_package(self.package)
        self.answered.append((tenant, self.current))
        return self.current


def limit_memory(more):
    with open("/proc/self/statm") as text:
        mapped = int(text.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, resource.RLIM_INFINITY))


def main():
    torch.manual_seed(105)
    package = os.path.join(tempfile.mkdtemp(), "tenant.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=64)
        exported = torch.export.export(Tenant().eval(), (torch.rand(4, 16),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    carousel = Carousel(package)
    limit_memory(400 << 20)
    for tenant in range(30):
        y = carousel.turn(tenant)(torch.rand(8, 16))
        print("tenant", tenant, tuple(y.shape), flush=True)


if __name__ == "__main__":
    main()
