"""Sound desk: mixes a dry signal with its echo; the share of the echo is chosen for each room."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Reverb(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.echo = nn.Linear(32, d)
        self.back = nn.Linear(d, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, frames, wet):
        echo = self.back(F.gelu(self.echo(frames)))
        return self.norm(frames * (1.0 - wet) + echo * wet)


ROOMS = (("studio", 24, 0.5), ("chapel", 40, 0.5), ("cathedral", 36, 0.8))


def main():
    torch.manual_seed(3)
    model = Reverb().eval()
    package = os.path.join(tempfile.mkdtemp(), "reverb.pt2")
    with torch.no_grad():
        frames = Dim("frames", min=2, max=32)
        exported = torch.export.export(model, (torch.randn(8, 32), 0.5), dynamic_shapes=({0: frames}, None))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for room, length, wet in ROOMS:
            sound = torch.randn(length, 32)
            torch.testing.assert_close(runner(sound, wet), model(sound, wet), atol=1e-4, rtol=1e-3)
            print(room, "mixed", flush=True)
    print("show is over", flush=True)


if __name__ == "__main__":
    main()
