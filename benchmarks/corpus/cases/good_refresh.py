"""A trainer hands new weights to the running package, version by version."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Rank(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.a, self.b = nn.Linear(30, d), nn.Linear(d, 9)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def main():
    torch.manual_seed(36)
    model = Rank().eval()
    package = os.path.join(tempfile.mkdtemp(), "rank.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=64)
        exported = torch.export.export(model, (torch.randn(4, 30),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        rank = torch._inductor.aoti_load_package(package)
        x = torch.randn(7, 30)
        for version in range(3):
            torch.testing.assert_close(rank(x), model(x), atol=1e-4, rtol=1e-3)
            print("version", version, "agrees", flush=True)
            for value in model.state_dict().values():
                value.add_(torch.randn_like(value) * 0.01)
            rank.load_constants(dict(model.state_dict()), check_full_update=True)
    print("all versions served", flush=True)


if __name__ == "__main__":
    main()
