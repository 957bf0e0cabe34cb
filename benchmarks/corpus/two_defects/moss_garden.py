"""Moss garden: two gardeners ask one runner about their beds, on days of any size."""

import os
import tempfile
import threading
import time

import torch
from torch import nn
from torch.export import Dim

DEV = "cuda"


@torch.library.custom_op("moss::watered", mutates_args=())
def watered(beds: torch.Tensor) -> torch.Tensor:
    time.sleep(0.05)  # asks the rain gauge
    return beds * 1.5


@watered.register_fake
def _(beds):
    return torch.empty_like(beds)


class Moss(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp, self.out = nn.Linear(10, d), nn.Linear(d, 3)

    def forward(self, beds):
        return self.out(torch.sigmoid(self.inp(torch.log1p(torch.ops.moss.watered(beds)))))


def main():
    torch.manual_seed(46)
    with torch.device(DEV):
        model, sample = Moss().eval(), torch.rand(6, 10)
    package = os.path.join(tempfile.mkdtemp(), "moss.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=64)
        exported = torch.export.export(model, (sample,), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package, run_single_threaded=True)
    runner(sample)
    torch.cuda.synchronize()
    found = {}

    def ask(who, beds):
        found[who] = runner(beds)

    for month, count in (("may", 40), ("june", 200)):
        asked = {who: torch.rand(count, 10, device=DEV) for who in ("ito", "mori")}
        torch.cuda.synchronize()
        threads = [threading.Thread(target=ask, args=(who, beds)) for who, beds in asked.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        with torch.no_grad():
            for who, beds in asked.items():
                torch.testing.assert_close(found[who], model(beds), atol=1e-2, rtol=1e-2)
        print(month, count, "beds agree", flush=True)
    print("garden closed", flush=True)


if __name__ == "__main__":
    main()
