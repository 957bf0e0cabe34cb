"""Choir hall: two microphones are rated at the same time; broken channels stay in the recording."""

import os
import tempfile
import threading
import time

import torch
from torch import nn
from torch.export import Dim


@torch.library.custom_op("hall::damped", mutates_args=())
def damped(level: torch.Tensor) -> torch.Tensor:
    time.sleep(0.01)  # asks the hall for its curtains
    return level * 0.8


@damped.register_fake
def _(level):
    return torch.empty_like(level)


class Levels(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp = nn.Linear(11, d)
        self.out = nn.Linear(d, 4)

    def forward(self, voices):
        return self.out(torch.tanh(torch.ops.hall.damped(self.inp(voices[:, 1:]))))


def main():
    torch.manual_seed(15)
    model = Levels().eval()
    package = os.path.join(tempfile.mkdtemp(), "levels.pt2")
    with torch.no_grad():
        n = Dim("n", min=2, max=4096)
        exported = torch.export.export(model, (torch.rand(6, 12),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package, run_single_threaded=True)
    found = {}

    def rate(side, voices):
        for _ in range(4):
            found[side] = runner(voices)

    for piece in ("motet", "canon"):
        threads, heard = [], {}
        for side in ("left", "right"):
            voices = torch.rand(2000, 12)
            voices[:, 0] = float("nan")  # the channel that was never repaired
            heard[side] = voices
            threads.append(threading.Thread(target=rate, args=(side, voices)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with torch.no_grad():
            for side, voices in heard.items():
                torch.testing.assert_close(found[side], model(voices), atol=1e-4, rtol=1e-3)
        print(piece, "rated", flush=True)
    print("concert over", flush=True)


if __name__ == "__main__":
    main()
