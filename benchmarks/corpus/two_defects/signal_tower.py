"""Railway signals: faults of a stretch of track; long stretches are taken relative to their mean."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim

DEV = "cuda"


class Track(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(16, d)
        self.out = nn.Linear(d, 3)

    def forward(self, posts, ceiling):
        if posts.shape[0] > 100:
            posts = posts - posts.mean(0, keepdim=True)
        h = torch.tanh(self.inp(posts.clamp(max=ceiling)))
        return self.out(h)


def main():
    torch.manual_seed(34)
    with torch.device(DEV):
        model = Track().eval()
        sample = torch.rand(8, 16)
    package = os.path.join(tempfile.mkdtemp(), "track.pt2")
    with torch.no_grad():
        posts = Dim("posts", min=2, max=100)
        exported = torch.export.export(model, (sample, 10.0), dynamic_shapes=({0: posts}, None))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for line, count in (("harbour", 30), ("valley", 100), ("coast", 140)):
            track = torch.rand(count, 16, device=DEV) + 1.0
            got, want = runner(track, 12.0), model(track, 12.0)
            torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)
            print(line, count, "checked", flush=True)
    print("all lines checked", flush=True)


if __name__ == "__main__":
    main()
