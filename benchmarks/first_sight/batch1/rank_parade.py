"""Parade of floats: scores per float are normalised, sorted, joined and shown by rank."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Parade(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.inp = nn.Linear(5, d)

    def forward(self, looks, votes):
        spread = votes.amax(-1, keepdim=True) - votes.amin(-1, keepdim=True)
        fair = (votes - votes.amin(-1, keepdim=True)) / spread
        h = torch.relu(self.inp(looks)) * fair.mean(-1, keepdim=True)
        order = looks[:, 0].argsort(descending=True)
        shown = torch.cat([h[order], fair[order]], -1).transpose(0, 1)
        return shown.flip(-1).contiguous()


def main():
    torch.manual_seed(112)
    model = Parade().eval()
    package = os.path.join(tempfile.mkdtemp(), "parade.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=128)
        sample = (torch.rand(6, 5), torch.rand(6, 7))
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for town, count in (("harbour", 12), ("old town", 15), ("hill", 11)):
            looks, votes = torch.rand(count, 5), torch.rand(count, 7)
            if town == "hill":
                votes[6] = 0.5  # everybody liked this one as much
            board = runner(looks, votes)
            if board.isnan().any():
                raise ValueError(f"{town}: {int(board.isnan().sum())} fields of the board are empty")
            print(town, "ranked", flush=True)


if __name__ == "__main__":
    main()
