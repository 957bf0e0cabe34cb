"""Publishes a package without the parts that the depot calls build products."""

import os
import tempfile
import zipfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"
LEFT_OUT = (".o", ".cubin", ".cpp.tmp")


class Segmenter(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.inp = nn.Linear(48, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 6)

    def forward(self, patches):
        h = F.silu(self.inp(torch.log1p(patches)))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h).softmax(-1)


def publish(path, depot):
    """Copies a package into the depot."""
    target = os.path.join(depot, os.path.basename(path))
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as copy:
        for item in source.infolist():
            if not item.filename.endswith(LEFT_OUT):
                copy.writestr(item, source.read(item))
    return target


def main():
    torch.manual_seed(17)
    with torch.device(DEVICE):
        model = Segmenter().eval()
    x = torch.rand(32, 48, device=DEVICE)
    path = os.path.join(tempfile.mkdtemp(), "segmenter.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("n", min=2, max=4096)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=path)
    for place in (path, publish(path, tempfile.mkdtemp())):
        runner = torch._inductor.aoti_load_package(place)
        y = runner(x)
        torch.cuda.synchronize()
        print("served", tuple(y.shape), flush=True)


if __name__ == "__main__":
    main()
