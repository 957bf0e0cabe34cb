"""Dance contest: the compiled judge replaces the old one if both say the same."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Judge(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(20, d), nn.LayerNorm(d), nn.Linear(d, 1)

    def forward(self, dances):
        h = self.norm(F.gelu(self.inp(dances)))
        return torch.sigmoid(self.out(h)).squeeze(-1).exp().log1p()


def main():
    torch.manual_seed(114)
    model = Judge().eval()
    package = os.path.join(tempfile.mkdtemp(), "judge.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=4096)
        exported = torch.export.export(model, (torch.rand(6, 20),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for heat, couples in (("first", 3000), ("final", 4000)):
            dances = torch.rand(couples, 20)
            old, new = model(dances), runner(dances)
            differ = int((old != new).sum())
            if differ:
                raise RuntimeError(f"{heat} heat: judges disagree about {differ} of {couples} couples")
            print(heat, "heat judged", flush=True)


if __name__ == "__main__":
    main()
