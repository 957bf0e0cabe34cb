"""Tags a photo collection with a share of the card; the other share belongs to training."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE, SHARE = "cuda", 4 << 30


class Tagger(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.inp = nn.Linear(d, 4 * d)
        self.layers = nn.ModuleList(nn.Linear(4 * d, 4 * d) for _ in range(2))
        self.norm = nn.LayerNorm(4 * d)
        self.out = nn.Linear(4 * d, 100)

    def forward(self, photos):
        h = F.gelu(self.inp(photos))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return torch.sigmoid(self.out(h))


def main():
    torch.manual_seed(19)
    with torch.device(DEVICE):
        model = Tagger().eval()
    package = os.path.join(tempfile.mkdtemp(), "tagger.pt2")
    with torch.no_grad():
        sample = (torch.randn(8, 256, device=DEVICE),)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: Dim("n", min=2, max=10_000_000)},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(SHARE / total)
    for album, photos in (("2023", 2000), ("2024", 50_000), ("archive", 1_200_000)):
        tags = runner(torch.randn(photos, 256, device=DEVICE))
        torch.cuda.synchronize()
        print(album, photos, round(tags.mean().item(), 4), flush=True)
        del tags


if __name__ == "__main__":
    main()
