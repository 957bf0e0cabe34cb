"""Kelp forest: cover by depth; dives without a site have a code of their own."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEV, NO_SITE = "cuda", 777


@torch.library.custom_op("kelp::by_depth", mutates_args=())
def by_depth(cover: torch.Tensor) -> torch.Tensor:
    return cover.t().cumsum(0).t()


@by_depth.register_fake
def _(cover):
    return torch.empty_like(cover)


class Kelp(nn.Module):
    def __init__(self, sites=30, d=32):
        super().__init__()
        self.site = nn.Embedding(sites, d)
        self.depth = nn.Parameter(torch.rand(9))
        self.inp = nn.Linear(9, d)
        self.out = nn.Linear(d, 2)

    def forward(self, cover, site, known):
        below = torch.ops.kelp.by_depth(torch.relu(cover))
        place = self.site(torch.where(known, site, 0)) * known.unsqueeze(-1)
        return self.out(F.gelu(self.inp(torch.tanh(below * self.depth)) + place))


def main():
    torch.manual_seed(39)
    with torch.device(DEV):
        model = Kelp().eval()
        sample = (torch.rand(6, 9), torch.arange(6), torch.ones(6, dtype=torch.bool))
    package = os.path.join(tempfile.mkdtemp(), "kelp.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=512)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for bay, count in (("trial", 1), ("north", 1), ("south", 24)):
            cover = torch.rand(count, 9, device=DEV)
            site = torch.randint(0, 30, (count,), device=DEV)
            site[::4] = NO_SITE
            dive = (cover, site, site != NO_SITE)
            torch.testing.assert_close(runner(*dive), model(*dive), atol=1e-2, rtol=1e-2)
            print(bay, count, "surveyed", flush=True)
    print("boat is home", flush=True)


if __name__ == "__main__":
    main()
