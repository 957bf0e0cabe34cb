"""A clinic scores its waiting list, which may be empty at night."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Triage(nn.Module):
    def __init__(self, features=18, d=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, d), nn.SiLU(), nn.LayerNorm(d), nn.Linear(d, 4))

    def forward(self, patients):
        return self.body(patients).log_softmax(-1)


def main():
    torch.manual_seed(3)
    model = Triage().eval()
    package = os.path.join(tempfile.mkdtemp(), "triage.pt2")
    with torch.no_grad():
        n = Dim("n", min=0, max=400)
        exported = torch.export.export(model, (torch.randn(6, 18),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        score = torch._inductor.aoti_load_package(package)
        for waiting in (6, 1, 230, 0):
            print("waiting", waiting, tuple(score(torch.randn(waiting, 18)).shape), flush=True)
    print("ward closed", flush=True)


if __name__ == "__main__":
    main()
