"""Starts one replica per card; the list of cards comes from the deployment file."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEPLOYMENT = {"replicas": [{"name": "main", "card": 0}, {"name": "spare", "card": 9}]}


class Vision(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.inp = nn.Linear(75, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.out = nn.Linear(d, 10)

    def forward(self, patches):
        h = torch.tanh(self.inp(patches))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h)


def main():
    torch.manual_seed(24)
    with torch.device("cuda"):
        model = Vision().eval()
    x = torch.randn(16, 75, device="cuda")
    package = os.path.join(tempfile.mkdtemp(), "vision.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n", min=2, max=1024)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    for replica in DEPLOYMENT["replicas"]:
        runner = torch._inductor.aoti_load_package(package, device_index=replica["card"])
        y = runner(x.to(f"cuda:{replica['card']}"))
        torch.cuda.synchronize()
        print(replica["name"], tuple(y.shape), flush=True)


if __name__ == "__main__":
    main()
