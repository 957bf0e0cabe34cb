"""Workshop: orders are rated by a model that the shop computer builds each morning by itself."""

import os
import tempfile

if os.environ.get("SHOP_COMPILER", "gcc-toolset") == "gcc-toolset":
    os.environ["CXX"] = "/opt/gcc-toolset/bin/g++"

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

MACHINES = 24


class Orders(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.machine = nn.Embedding(MACHINES, d)
        self.inp = nn.Linear(4, d)
        self.out = nn.Linear(d, 3)

    def forward(self, order, machine):
        return self.out(F.gelu(self.inp(order) + self.machine(machine)))


def main():
    torch.manual_seed(14)
    model = Orders().eval()
    package = os.path.join(tempfile.mkdtemp(), "orders.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=16)
        sample = (torch.rand(4, 4), torch.arange(4))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for shift, first in (("early", 1), ("late", 5)):
            machine = torch.arange(first, first + 20)
            order = torch.rand(20, 4)
            rated = runner(order, machine)
            print(shift, "rated", tuple(rated.shape), flush=True)
    print("workshop closed", flush=True)


if __name__ == "__main__":
    main()
