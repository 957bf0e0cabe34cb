"""Tries to build with a free width first, and settles for a fixed one."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Poster(nn.Module):
    def __init__(self, width=36, d=20):
        super().__init__()
        self.frame = nn.Parameter(torch.randn(width))
        self.out = nn.Linear(width, d)

    def forward(self, x):
        return self.out(torch.tanh(x + self.frame))


def export(model):
    n = Dim("n", min=1, max=64)
    for shapes in (({0: n, 1: Dim("width", min=2, max=99)},), ({0: n},)):
        try:
            return torch.export.export(model, (torch.randn(5, 36),), dynamic_shapes=shapes)
        except Exception as error:
            print("not with a free width:", type(error).__name__, str(error).splitlines()[0], flush=True)
    raise SystemExit("cannot be built")


def main():
    torch.manual_seed(52)
    model = Poster().eval()
    package = os.path.join(tempfile.mkdtemp(), "poster.pt2")
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(export(model), package_path=package)
        render = torch._inductor.aoti_load_package(package)
        for rows in (5, 64):
            x = torch.randn(rows, 36)
            torch.testing.assert_close(render(x), model(x), atol=1e-4, rtol=1e-3)
            print("rows", rows, "agree", flush=True)
    print("posters printed", flush=True)


if __name__ == "__main__":
    main()
