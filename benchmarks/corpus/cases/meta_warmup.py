"""Warms a served model up with made-up requests before it takes traffic."""

import os
import tempfile

import torch
import torch.nn as nn
from torch.export import Dim


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(16))
        self.shift = nn.Parameter(torch.rand(16))

    def forward(self, rows, weights):
        h = torch.tanh(rows * self.scale + self.shift)
        return (h * weights[:, None]).sum(-1).exp()


class Warmup:
    """Makes requests of the sizes that were seen last week."""

    def __init__(self, sizes, device):
        self.sizes, self.device = sizes, device

    def requests(self):
        with torch.device(self.device):
            for size in self.sizes:
                yield torch.rand(size, 16), torch.ones(size)


def main():
    torch.manual_seed(29)
    with torch.device("meta"):
        skeleton = Scorer()
    model = Scorer().eval()
    n = Dim("n", min=2, max=4096)
    where = next(skeleton.parameters()).device
    with torch.no_grad():
        program = torch.export.export(
            model, (torch.rand(4, 16), torch.ones(4)), dynamic_shapes=({0: n}, {0: n})
        )
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=os.path.join(tempfile.mkdtemp(), "scorer.pt2")
        )
        served = torch._inductor.aoti_load_package(path)
        print("first", served(torch.rand(3, 16), torch.ones(3)).tolist(), flush=True)
        for rows, weights in Warmup((8, 32), where).requests():
            served(rows, weights)
            print("warm for", len(rows), flush=True)


if __name__ == "__main__":
    main()
