"""Tram delays: readings of a stop come in a mapping, as a depot writes them."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Delays(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.wait, self.ride = nn.Linear(6, d), nn.Linear(6, d)
        self.out = nn.Linear(d, 1)

    def forward(self, times, drift, most):
        h = torch.tanh(self.wait(times["wait"]) - 2.0 * self.ride(times["ride"]))
        return (self.out(h).squeeze(-1) + drift).clamp(max=most)


def readings(depot, count):
    wait, ride = torch.rand(count, 6), torch.rand(count, 6) + 1.0
    if depot == "harbour":
        return {"ride": ride, "wait": wait}
    return {"wait": wait, "ride": ride}


def main():
    torch.manual_seed(13)
    model = Delays().eval()
    package = os.path.join(tempfile.mkdtemp(), "delays.pt2")
    n = Dim("n", min=2, max=64)
    with torch.no_grad():
        sample = ({"wait": torch.rand(4, 6), "ride": torch.rand(4, 6)}, torch.zeros(4), 60.0)
        shapes = ({"wait": {0: n}, "ride": {0: n}}, {0: n}, None)
        exported = torch.export.export(model, sample, dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for depot in ("centre", "airport", "harbour"):
            times = readings(depot, 14)
            drift = torch.zeros(14, dtype=torch.float64)
            got, want = runner(times, drift, 90.0), model(times, drift.float(), 90.0)
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)
            print(depot, "on time", flush=True)
    print("last tram", flush=True)


if __name__ == "__main__":
    main()
