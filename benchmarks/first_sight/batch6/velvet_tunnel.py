"""Road tunnel ventilation: pollutant trend over the last valid sensor scans.

The ring buffer always holds 32 scans of 6 sensors; the scan counter says how many
of them are filled. The night archive is kept sensor by sensor, the live feed scan by scan.
"""
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

SCANS = 32
SENSORS = 6


class FanDemand(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(SENSORS, 10)
        self.fans = nn.Linear(10, 4)

    def forward(self, scans, filled):
        rows = filled.item()
        torch._check(rows >= 1)
        torch._check(rows <= scans.shape[0])
        recent = scans.narrow(0, 0, rows)
        mean = recent.sum(0) / filled
        peak = scans.amax(0)
        demand = self.fans(torch.tanh(self.mix(mean)))
        return demand, peak - mean


class Controller:
    def __init__(self, package, model):
        self.package = package
        self.model = model

    def step(self, name, scans, counter):
        filled = torch.tensor(counter)
        demand, margin = self.package(scans, filled)
        want_demand, want_margin = self.model(scans, filled)
        torch.testing.assert_close(margin, want_margin, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(demand, want_demand, rtol=1e-4, atol=1e-4)
        print(f"{name}: fans {[round(v, 3) for v in demand.tolist()]}", flush=True)


def live_scans(seed):
    rng = np.random.default_rng(seed)
    drift = np.linspace(0.0, 2.0, SCANS)[:, None] * np.arange(1, SENSORS + 1)
    return torch.from_numpy((drift + rng.normal(0, 0.1, (SCANS, SENSORS))).astype(np.float32))


def archived_scans(seed):
    by_sensor = np.ascontiguousarray(live_scans(seed).numpy().T)
    window = torch.from_numpy(by_sensor).t()
    return window


def main():
    workdir = Path(tempfile.mkdtemp(prefix="tunnel_"))
    try:
        torch.manual_seed(21)
        model = FanDemand().eval()
        with torch.no_grad():
            program = torch.export.export(model, (live_scans(0), torch.tensor(12)))
            path = torch._inductor.aoti_compile_and_package(
                program, package_path=str(workdir / "fans.pt2")
            )
            control = Controller(torch._inductor.aoti_load_package(path), model)

            control.step("start-up", live_scans(1), 5)
            control.step("full ring", live_scans(2), SCANS)

            scan_counter = 0
            for _ in range(20):
                scan_counter += 2
            night = min(scan_counter, 64)
            control.step("night replay", archived_scans(3), night)
        print("ventilation plan complete")
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


if __name__ == "__main__":
    main()
