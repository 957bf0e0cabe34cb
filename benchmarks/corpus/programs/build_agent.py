"""Builds a package on a build agent whose tool chain is chosen by a profile."""

import os
import tempfile

PROFILES = {"site": {}, "agent": {"CXX": "/opt/toolchain/14/bin/g++-14"}}
os.environ.update(PROFILES[os.environ.get("BUILD_PROFILE", "agent")])

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402


class Flow(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp, self.out = nn.Linear(8, d), nn.Linear(d, 2)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))

    def forward(self, readings):
        h = torch.tanh(self.inp(readings))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h)


def main():
    torch.manual_seed(25)
    model = Flow().eval()
    x = torch.randn(5, 8)
    package = os.path.join(tempfile.mkdtemp(), "flow.pt2")
    with torch.no_grad():
        print("eager", tuple(model(x).shape), flush=True)
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n", min=1, max=128)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    print("compiled", tuple(runner(x).shape), flush=True)


if __name__ == "__main__":
    main()
