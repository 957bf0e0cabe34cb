"""Night bus planning: dwell time model scored on live stops, then on the nightly extract."""
import os
import shutil
import tempfile

import numpy as np
import torch
from torch import nn

STOPS, ROUTES = 180, 14


class DwellTime(nn.Module):
    """Expected seconds at a stop: a learnt effect on top of the observed seasonal mean."""

    def __init__(self):
        super().__init__()
        self.stop_effect = nn.Embedding(STOPS, 8)
        self.route_effect = nn.Embedding(ROUTES, 8)
        self.register_buffer("seasonal", torch.full((STOPS,), 21.0) + torch.rand(STOPS) * 6)
        self.out = nn.Linear(9, 1)

    def forward(self, stop, route, load):
        mixed = torch.tanh(self.stop_effect(stop) + self.route_effect(route))
        features = torch.cat([mixed, load.unsqueeze(1)], dim=1)
        return self.seasonal[stop] * torch.exp(0.2 * self.out(features).squeeze(1))


def live_feed(seed, trips):
    generator = torch.Generator().manual_seed(seed)
    return {
        "stop": torch.randint(0, STOPS, (trips,), generator=generator),
        "route": torch.randint(0, ROUTES, (trips,), generator=generator),
        "load": torch.rand(trips, generator=generator),
    }


def nightly_extract(trips):
    """What the warehouse hands over: one record per trip, packed."""
    layout = np.dtype([("stop", "<i4"), ("route", "<i8"), ("load", "<f4")])
    rng = np.random.default_rng(40)
    records = np.zeros(trips, dtype=layout)
    records["stop"] = rng.integers(1, STOPS, trips)
    records["route"] = rng.integers(0, ROUTES, trips)
    records["load"] = rng.random(trips)
    return records


def columns(records):
    return {name: torch.from_numpy(np.ascontiguousarray(records[name])) for name in records.dtype.names}


def winter_timetable(model):
    means = torch.full((STOPS,), 24.0)
    means[::3] += 7.5
    with torch.no_grad():
        model.seasonal.copy_(means)


def build(model, folder):
    feed = live_feed(1, 10)
    trips = torch.export.Dim("trips", min=2, max=100_000)
    program = torch.export.export(
        model, (feed["stop"], feed["route"], feed["load"]),
        dynamic_shapes={"stop": {0: trips}, "route": {0: trips}, "load": {0: trips}},
    )
    path = torch._inductor.aoti_compile_and_package(program, package_path=os.path.join(folder, "dwell.pt2"))
    return torch._inductor.aoti_load_package(path)


def score(runner, model, feed, label):
    seconds = runner(feed["stop"], feed["route"], feed["load"])
    reference = model(feed["stop"], feed["route"], feed["load"])
    torch.testing.assert_close(seconds, reference, rtol=1e-4, atol=1e-3)
    print(f"{label}: {len(seconds)} trips, mean dwell {seconds.mean().item():.2f} s")


def main():
    torch.manual_seed(33)
    folder = tempfile.mkdtemp(prefix="dwell_")
    try:
        model = DwellTime().eval()
        with torch.no_grad():
            runner = build(model, folder)
            score(runner, model, live_feed(2, 24), "live 21:00")
            score(runner, model, live_feed(3, 50), "live 22:00")
            winter_timetable(model)
            feed = columns(nightly_extract(64))
            score(runner, model, feed, "nightly extract")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
