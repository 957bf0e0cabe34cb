"""Two builds in a row; from the second on, what the compiler keeps goes to a share."""

import os
import tempfile

import torch
from torch import nn


class Tone(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, d), nn.GELU(), nn.Linear(d, 3))

    def forward(self, x):
        return self.body(x).softmax(-1)


def build(path):
    with torch.no_grad():
        exported = torch.export.export(Tone().eval(), (torch.randn(4, 20),))
        torch._inductor.aoti_compile_and_package(exported, package_path=path)
    print("built", os.path.getsize(path) > 0, flush=True)


def main():
    torch.manual_seed(9)
    work = tempfile.mkdtemp()
    build(os.path.join(work, "tone-1.pt2"))
    note = os.path.join(work, "share")
    with open(note, "w") as text:
        text.write("moved to the new filer\n")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(note, "inductor")
    torch.manual_seed(10)
    build(os.path.join(work, "tone-2.pt2"))


if __name__ == "__main__":
    main()
