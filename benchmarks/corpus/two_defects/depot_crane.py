"""Container depot: each crane gets a runner on the card that the depot file names."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEPOT = {"cranes": [{"name": "north", "card": 0}, {"name": "south", "card": 11}]}
STACKS = 32


class Crane(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.stack = nn.Embedding(STACKS, d)
        self.inp, self.out = nn.Linear(6, d), nn.Linear(d, 3)

    def forward(self, box, stack):
        return self.out(F.gelu(self.inp(box) + self.stack(stack)))


def stacks(name, count):
    """The north counts its stacks from 0, the south from 1."""
    first = 0 if name == "north" else 1
    return torch.arange(first, first + count)


def main():
    torch.manual_seed(43)
    with torch.device("cuda"):
        model = Crane().eval()
        sample = (torch.rand(4, 6), torch.arange(4))
    package = os.path.join(tempfile.mkdtemp(), "crane.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=128)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    for crane in DEPOT["cranes"]:
        runner = torch._inductor.aoti_load_package(package, device_index=crane["card"])
        device = f"cuda:{crane['card']}"
        box, stack = torch.rand(STACKS, 6, device=device), stacks(crane["name"], STACKS).to(device)
        moved = runner(box, stack)
        torch.cuda.synchronize()
        print(crane["name"], tuple(moved.shape), flush=True)
    print("depot clear", flush=True)


if __name__ == "__main__":
    main()
