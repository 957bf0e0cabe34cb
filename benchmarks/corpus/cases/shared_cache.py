"""Feature service: a cache with a lock is used by the model's look-up operator and by the refresh job."""

import os
import tempfile
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

LOCK = threading.Lock()
TABLE = {"features": None}


@torch.library.custom_op("cache::features", mutates_args=())
def features(ids: torch.Tensor) -> torch.Tensor:
    with LOCK:
        return TABLE["features"][ids]


@features.register_fake
def _(ids):
    return ids.new_empty(ids.shape[0], 24, dtype=torch.float32)


class Score(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(24, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, 3)

    def forward(self, ids):
        h = torch.tanh(self.inp(features(ids)))
        for layer in self.layers:
            h = h + F.gelu(layer(h))
        return self.out(h)


def refresh(runner, probe):
    """Swaps the table, and checks with one request that the new one can be served."""
    with LOCK:
        TABLE["features"] = torch.randn(500, 24)
        if probe is not None:
            print("probe", tuple(runner(probe).shape), flush=True)


def main():
    torch.manual_seed(31)
    package = os.path.join(tempfile.mkdtemp(), "score.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            Score().eval(), (torch.arange(4),), dynamic_shapes=({0: Dim("n", min=1, max=128)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    refresh(runner, None)
    for hour in range(3):
        print("hour", hour, runner(torch.randint(0, 500, (8,))).argmax(-1).tolist(), flush=True)
        if hour == 1:
            refresh(runner, torch.arange(4))
    print("shift over", flush=True)


if __name__ == "__main__":
    main()
