"""Pre-fork server: the parent loads and warms the package, then the workers are forked."""

import os
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(15)
torch.set_num_threads(2)


class Net(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(128, d), nn.Linear(d, d), nn.Linear(d, 8)
        self.n = nn.LayerNorm(d)

    def forward(self, x):
        h = F.gelu(self.a(x))
        return self.o(self.n(h + torch.tanh(self.b(h))))


def serve(runner, worker):
    with torch.no_grad():
        for request in range(3):
            y = runner(torch.randn(512, 128))
            print("worker", worker, "request", request, tuple(y.shape), flush=True)


def main():
    model = Net().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "net.pt2")
    with torch.no_grad():
        ep = torch.export.export(
            model, (torch.randn(512, 128),), dynamic_shapes=({0: Dim("b", min=2, max=4096)},)
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        print("warm", tuple(runner(torch.randn(512, 128)).shape), flush=True)
    children = []
    for worker in range(2):
        pid = os.fork()
        if pid == 0:
            serve(runner, worker)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    print("all workers finished", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
