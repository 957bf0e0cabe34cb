"""Reef census: shares of species, compared with the reef that looks most alike."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Census(nn.Module):
    def __init__(self, species=8, d=16):
        super().__init__()
        self.inp, self.out = nn.Linear(species, d), nn.Linear(d, 2)

    def forward(self, counts, like):
        share = counts / counts.sum(-1, keepdim=True)
        known = torch.log(share)
        both = torch.stack([known, known[like]], 1).permute(1, 0, 2)
        gap = torch.where(both[0] > both[1], both[0], both[1]) - both[1]
        return self.out(torch.tanh(self.inp(gap.reshape(-1, 8))))


def main():
    torch.manual_seed(115)
    model = Census().eval()
    package = os.path.join(tempfile.mkdtemp(), "census.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=128)
        sample = (torch.rand(6, 8), torch.arange(6))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for year, count in ((2023, 10), (2024, 12), (2025, 9)):
            counts = torch.randint(1, 40, (count, 8)).float()
            if year == 2025:
                counts[4, 3] = counts[7, 3] = 0.0
            like = torch.arange(count).roll(3)
            outlook = runner(counts, like)
            assert not outlook.isnan().any(), (
                f"{year}: no outlook for {int(outlook.isnan().any(-1).sum())} reefs"
            )
            print(year, "outlook", round(outlook.mean().item(), 4), flush=True)


if __name__ == "__main__":
    main()
