"""Scores overlapping windows of one long recording without copying them."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Window(nn.Module):
    def __init__(self, width=33, d=24):
        super().__init__()
        self.inp, self.out = nn.Linear(width, d), nn.Linear(d, 2)

    def forward(self, window):
        return self.out(torch.relu(self.inp(window)))


def main():
    torch.manual_seed(56)
    model = Window().eval()
    package = os.path.join(tempfile.mkdtemp(), "window.pt2")
    record = torch.randn(33 * 40 + 5)
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(model, (torch.randn(4, 33),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        score = torch._inductor.aoti_load_package(package)
        for begin, rows in ((0, 40), (1, 40), (5, 40), (33 * 39 + 5, 1)):
            window = record[begin : begin + 33 * rows].view(rows, 33)
            torch.testing.assert_close(score(window), model(window), atol=1e-4, rtol=1e-3)
            print("begin", begin, "rows", rows, "agree", flush=True)
    print("recording scored", flush=True)


if __name__ == "__main__":
    main()
