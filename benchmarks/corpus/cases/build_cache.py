"""Deployment helper that builds a package once per model and reuses it afterwards."""

import hashlib
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

torch.manual_seed(33)


class HeadV1(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.a, self.n, self.b, self.o = nn.Linear(20, d), nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, 3)

    def forward(self, x):
        h = F.relu(self.a(x))
        return self.o(self.n(h + F.relu(self.b(h))))


class HeadV2(HeadV1):
    """Same weights, smoother activation."""

    def forward(self, x):
        h = F.gelu(self.a(x))
        return self.o(self.n(h + F.gelu(self.b(h))))


class Deployer:
    def __init__(self, root):
        self.root = root

    def key(self, model):
        h = hashlib.sha256()
        for name, value in sorted(model.state_dict().items()):
            h.update(name.encode() + value.numpy().tobytes())
        return h.hexdigest()[:16]

    def deploy(self, model):
        path = os.path.join(self.root, self.key(model) + ".pt2")
        if not os.path.exists(path):
            ep = torch.export.export(
                model, (torch.randn(8, 20),), dynamic_shapes=({0: Dim("b", min=1, max=64)},)
            )
            torch._inductor.aoti_compile_and_package(ep, package_path=path)
            print("built", os.path.basename(path), flush=True)
        return torch._inductor.aoti_load_package(path)


def main():
    deployer = Deployer(tempfile.mkdtemp())
    v1 = HeadV1().eval()
    v2 = HeadV2().eval()
    v2.load_state_dict(v1.state_dict())
    with torch.no_grad():
        for model in (v1, v2):
            runner = deployer.deploy(model)
            x = torch.randn(11, 20)
            torch.testing.assert_close(runner(x), model(x), atol=1e-4, rtol=1e-4)
            print(type(model).__name__, "verified", flush=True)


if __name__ == "__main__":
    main()
