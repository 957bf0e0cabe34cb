"""Dye works: how far neighbouring bolts of cloth colour each other, at a chosen strength."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim

DEV = "cuda"


class Dye(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(6, d)
        self.out = nn.Linear(d, 3)

    def forward(self, bolts, apart, strength):
        near = torch.exp(-apart * strength)
        return self.out(near @ torch.tanh(self.inp(bolts)))


def distances(count):
    place = torch.rand(count, device=DEV)
    return (place[:, None] - place[None]).abs().t()


def main():
    torch.manual_seed(35)
    with torch.device(DEV):
        model = Dye().eval()
        sample = (torch.rand(5, 6), torch.rand(5, 5), 0.5)
    package = os.path.join(tempfile.mkdtemp(), "dye.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=256)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n, 1: n}, None))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for batch, count, strength in (("linen", 40, 0.5), ("wool", 60, 0.5), ("silk", 50, 2.0)):
            bolts, apart = torch.rand(count, 6, device=DEV), distances(count)
            got, want = runner(bolts, apart, strength), model(bolts, apart, strength)
            torch.testing.assert_close(got, want, atol=5e-2, rtol=1e-2)
            print(batch, "dyed", flush=True)
    print("vats empty", flush=True)


if __name__ == "__main__":
    main()
