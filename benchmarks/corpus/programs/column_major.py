"""Frame server: frames arrive column-major, as at the export; an in-place operator keeps a histogram."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.library.custom_op("hist::add", mutates_args=("table",))
def add(table: torch.Tensor, slots: torch.Tensor) -> None:
    table.index_add_(0, slots, torch.ones_like(slots, dtype=table.dtype))


@add.register_fake
def _(table, slots):
    return None


class Frames(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.a, self.n, self.o = nn.Linear(20, d), nn.LayerNorm(d), nn.Linear(d, 4)

    def forward(self, frame, table):
        h = self.n(F.gelu(self.a(frame)))
        y = self.o(h)
        add(table, y.argmax(-1))
        return y


def frame(seed):
    return torch.randn(20, 40, generator=torch.Generator().manual_seed(seed)).t()


def main():
    torch.manual_seed(0)
    model = Frames().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "frames.pt2")
    with torch.no_grad():
        ep = torch.export.export(model, (frame(0), torch.zeros(4)))
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
        runner = torch._inductor.aoti_load_package(pkg)
        mine, theirs = torch.zeros(4), torch.zeros(4)
        for i in range(4):
            x = frame(i + 1)
            torch.testing.assert_close(runner(x, mine), model(x, theirs), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(mine, theirs)
            print("frame", i, mine.tolist(), flush=True)
    print("stream finished", flush=True)


if __name__ == "__main__":
    main()
