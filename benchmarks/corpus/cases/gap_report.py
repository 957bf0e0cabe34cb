"""Hourly station report. Hours without a reading have no mean; the report leaves them open."""

import math
import os
import tempfile

import torch
import torch.nn as nn

HOURS = 24


class Hourly(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.tensor([0.0, 0.3, -0.2, 0.1]))

    def forward(self, obs):
        hot = torch.nn.functional.one_hot(obs["hour"], HOURS).to(obs["value"].dtype)
        value = obs["value"] + self.offset[obs["sensor"]]
        count = hot.sum(0)
        mean = (hot * value.unsqueeze(-1)).sum(0) / count
        low = torch.where(hot > 0, value.unsqueeze(-1), math.inf).amin(0)
        high = torch.where(hot > 0, value.unsqueeze(-1), -math.inf).amax(0)
        return {"mean": mean, "low": low, "high": high, "spread": high - low, "log": torch.log(count)}


def observations(seed, rows, closed):
    g = torch.Generator().manual_seed(seed)
    hour = torch.randint(0, HOURS, (rows,), generator=g)
    keep = ~torch.isin(hour, torch.tensor(closed))
    n = int(keep.sum())
    return {
        "hour": hour[keep].contiguous(),
        "value": torch.randn(n, generator=g) * 4 + 15,
        "sensor": torch.randint(-4, 4, (n,), generator=g),
    }


def line(report):
    cells = ["  -- " if math.isnan(m) else f"{m:5.1f}" for m in report["mean"].tolist()]
    return " ".join(cells)


def verify(obs, report, offset):
    for h in range(HOURS):
        pick = obs["hour"] == h
        if not pick.any():
            assert (
                report["mean"][h].isnan()
                and report["low"][h] == math.inf
                and report["spread"][h] == -math.inf
            )
            continue
        v = (obs["value"] + offset[obs["sensor"]])[pick]
        torch.testing.assert_close(report["mean"][h], v.mean(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(report["spread"][h], v.max() - v.min())


def main():
    model = Hourly().eval()
    n = torch.export.Dim("n", min=2, max=5000)
    sample = observations(0, 80, [])
    with torch.no_grad():
        ep = torch.export.export(model, (sample,), dynamic_shapes=({k: {0: n} for k in sample},))
        path = torch._inductor.aoti_compile_and_package(
            ep, package_path=os.path.join(tempfile.mkdtemp(), "hourly.pt2")
        )
        runner = torch._inductor.aoti_load_package(path)
        for day, (rows, closed) in enumerate([(900, []), (700, [3, 4]), (40, [0, 1, 2]), (6, [])]):
            obs = observations(day + 1, rows, closed)
            report = runner(obs)
            verify(obs, report, model.offset)
            print(f"day {day}: {line(report)}", flush=True)
            if report["mean"].isnan().any():
                print(f"warning: day {day} has {int(report['mean'].isnan().sum())} nan hours", flush=True)
    print("report written")


if __name__ == "__main__":
    main()
