"""A tea taster is built right after its training, and compared with the model it came from."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Taster(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp, self.drop, self.out = nn.Linear(10, d), nn.Dropout(0.4), nn.Linear(d, 6)

    def forward(self, sample):
        return self.out(self.drop(torch.relu(self.inp(sample)))).softmax(-1)


def main():
    torch.manual_seed(13)
    model = Taster()
    package = os.path.join(tempfile.mkdtemp(), "tea.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(model, (torch.randn(4, 10),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        taste = torch._inductor.aoti_load_package(package)
        model.eval()
        for cups in (4, 12):
            tea = torch.randn(cups, 10)
            torch.testing.assert_close(taste(tea), model(tea), atol=1e-4, rtol=1e-3)
            print("cups", cups, "agree", flush=True)


if __name__ == "__main__":
    main()
