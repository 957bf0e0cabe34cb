"""Streaming scorer: a feeder thread puts the next batch into the staging buffer."""

import os
import tempfile
import threading
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

PROFILE = {}


@torch.library.custom_op("profile::fetch", mutates_args=())
def fetch(keys: torch.Tensor) -> torch.Tensor:
    time.sleep(0.02)  # remote store
    return torch.stack([PROFILE.setdefault(int(k), torch.full((16,), int(k) / 50.0)) for k in keys])


@fetch.register_fake
def _(keys):
    return torch.empty(keys.shape[0], 16)


class Scorer(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(16, d), nn.Linear(12, d), nn.Linear(d, 3)
        self.n = nn.LayerNorm(d)

    def forward(self, keys, signal):
        h = self.a(fetch(keys))
        return self.o(self.n(h + F.gelu(self.b(signal))))


def main():
    torch.manual_seed(3)
    model = Scorer().eval()
    pkg = os.path.join(tempfile.mkdtemp(), "stream.pt2")
    b = Dim("b", min=2, max=64)
    with torch.no_grad():
        ep = torch.export.export(
            model, (torch.arange(4), torch.randn(4, 12)), dynamic_shapes=({0: b}, {0: b})
        )
        torch._inductor.aoti_compile_and_package(ep, package_path=pkg)
    runner = torch._inductor.aoti_load_package(pkg)
    batches = [torch.randn(8, 12, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    keys = torch.arange(8)

    def score_all(overlap):
        staging, out = batches[0].clone(), []
        for i in range(len(batches)):
            feeder = None
            if i + 1 < len(batches):
                feeder = threading.Thread(
                    target=lambda nxt=batches[i + 1]: (time.sleep(0.005), staging.copy_(nxt))
                )
            if feeder and overlap:
                feeder.start()
            out.append(runner(keys, staging))
            if feeder:
                overlap or feeder.start()
                feeder.join()
        return torch.stack(out)

    with torch.no_grad():
        want = torch.stack([model(keys, x) for x in batches])
        for overlap in (False, True):
            torch.testing.assert_close(score_all(overlap), want, atol=1e-4, rtol=1e-4)
            print("overlap", overlap, "ok", flush=True)


if __name__ == "__main__":
    main()
