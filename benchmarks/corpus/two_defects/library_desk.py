"""Library desk: shelf hints for borrowed titles; two clerks warm the desk up in the morning."""

import os
import tempfile
import threading
import time

import torch
from torch import nn
from torch.export import Dim


@torch.library.custom_op("desk::opening", mutates_args=())
def opening(days: torch.Tensor) -> torch.Tensor:
    time.sleep(0.02)  # asks the house for its holidays
    return days.clamp(max=14.0)


@opening.register_fake
def _(days):
    return torch.empty_like(days)


class Shelf(nn.Module):
    def __init__(self, titles=400, d=32):
        super().__init__()
        self.title = nn.Embedding(titles, d)
        self.late = nn.Linear(1, d)
        self.out = nn.Linear(d, 6)

    def forward(self, title, days):
        h = self.title(title) + self.late(torch.ops.desk.opening(days).unsqueeze(-1)).tanh()
        return self.out(h).softmax(-1)


def slots(barcodes):
    return barcodes % 403


def warm_up(runner, batch):
    def clerk():
        for _ in range(4):
            runner(*batch)

    clerks = [threading.Thread(target=clerk) for _ in range(2)]
    for one in clerks:
        one.start()
    for one in clerks:
        one.join()


def main():
    torch.manual_seed(1)
    model = Shelf().eval()
    package = os.path.join(tempfile.mkdtemp(), "shelf.pt2")
    sample = (torch.randint(0, 400, (64,)), torch.rand(64))
    with torch.no_grad():
        n = Dim("n", min=1, max=4096)
        exported = torch.export.export(model, sample, dynamic_shapes=({0: n}, {0: n}))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        desk = torch._inductor.aoti_load_package(package, run_single_threaded=True)
        warm_up(desk, (torch.randint(0, 400, (2048,)), torch.rand(2048)))
        print("desk is warm", flush=True)
        for hour, first in enumerate((1209, 1330, 1560)):
            titles = slots(torch.arange(first, first + 60))
            hints = desk(titles, torch.rand(60))
            print("hour", hour, round(hints.amax().item(), 3), flush=True)
    print("desk closed", flush=True)


if __name__ == "__main__":
    main()
