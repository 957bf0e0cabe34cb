"""Nightly job: each stage works in its own scratch directory, which is removed when the stage ends."""

import contextlib
import os
import shutil
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(6)


class Scorer(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.a, self.n, self.b, self.o = nn.Linear(30, d), nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, 2)

    def forward(self, x):
        h = F.gelu(self.a(x))
        return self.o(self.n(h + F.gelu(self.b(h))))


@contextlib.contextmanager
def stage(root, name):
    scratch = os.path.join(root, name)
    os.makedirs(scratch)
    os.environ["TMPDIR"] = scratch
    print("stage", name, flush=True)
    yield scratch
    shutil.rmtree(scratch)


def main():
    root = tempfile.mkdtemp()
    pkg = os.path.join(root, "scorer.pt2")
    model = Scorer().eval()
    with stage(root, "build"), torch.no_grad():
        ep = torch.export.export(
            model, (torch.randn(8, 30),), dynamic_shapes=({0: Dim("b", min=1, max=999)},)
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    with stage(root, "verify"), torch.no_grad():
        x = torch.randn(5, 30)
        torch.testing.assert_close(torch._inductor.aoti_load_package(pkg)(x), model(x), atol=1e-4, rtol=1e-4)
        print("verified", flush=True)
    runner = torch._inductor.aoti_load_package(pkg)
    print("scored", tuple(runner(torch.randn(100, 30)).shape), flush=True)


if __name__ == "__main__":
    main()
