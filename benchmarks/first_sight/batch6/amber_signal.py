"""Air quality network: hourly index from stations that come and go."""
import logging
import os
import shutil
import tempfile

import torch
from torch import nn

logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
log = logging.getLogger("airnet")

SPECIES = 4
NO_DATA = float("nan")


class HourlyIndex(nn.Module):
    """Weighted station index; a station without one valid species is reported as NaN."""

    def __init__(self):
        super().__init__()
        self.register_buffer("limit", torch.tensor([25.0, 50.0, 120.0, 200.0]))
        self.trust = nn.Parameter(torch.tensor([0.4, 0.1, 0.3, -0.2]))
        self.steep = nn.Parameter(torch.tensor(9.0))

    def forward(self, readings):
        valid = torch.isfinite(readings) & (readings >= 0)
        ratio = torch.where(valid, readings, 0.0) / self.limit
        share = 1.0 / (1.0 + torch.exp(self.steep * (1.0 - ratio * 12)))
        alarm = 1.0 / (1.0 + torch.exp(self.steep * (ratio * 12 - 6)))
        logits = torch.where(valid, self.trust, float("-inf"))
        weight = torch.softmax(logits, dim=1)
        score = torch.where(valid, weight * (share + 1.0 - alarm), 0.0).sum(dim=1)
        return torch.where(valid.any(dim=1), score, NO_DATA), weight


def hour(seed, stations, silent=(), spikes=()):
    generator = torch.Generator().manual_seed(seed)
    readings = torch.rand(stations, SPECIES, generator=generator) * torch.tensor([30.0, 60.0, 100.0, 90.0])
    for station in silent:
        readings[station] = NO_DATA
    for station, species, value in spikes:
        readings[station, species] = value
    return readings


def publish(runner, model, label, readings):
    index, weight = runner(readings)
    expected, expected_weight = model(readings)
    torch.testing.assert_close(index, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(weight, expected_weight, rtol=1e-4, atol=1e-5, equal_nan=True)
    offline = ~torch.isfinite(readings).any(dim=1)
    assert torch.equal(torch.isnan(index), offline), "index and station list disagree"
    if offline.any():
        log.error("%s: index is nan for stations %s", label, offline.nonzero().flatten().tolist())
    reported = index[~offline]
    log.info("%s: %d stations, index %.3f to %.3f", label, len(reported), reported.min(), reported.max())
    return index


def main():
    torch.manual_seed(6)
    folder = tempfile.mkdtemp(prefix="airnet_")
    try:
        model = HourlyIndex().eval()
        stations = torch.export.Dim("stations", min=2, max=1000)
        with torch.no_grad():
            program = torch.export.export(model, (hour(1, 7),), dynamic_shapes={"readings": {0: stations}})
            package = torch._inductor.aoti_compile_and_package(
                program, package_path=os.path.join(folder, "index.pt2")
            )
            runner = torch._inductor.aoti_load_package(package)
            publish(runner, model, "05:00", hour(2, 9))
            publish(runner, model, "06:00", hour(3, 12, spikes=[(4, 0, -999.0)]))
            publish(
                runner, model, "07:00",
                hour(4, 12, silent=(2, 9), spikes=[(5, 1, NO_DATA), (7, 3, 4.0e6), (8, 2, float("inf"))]),
            )
        try:
            torch._inductor.aoti_load_package(os.path.join(folder, "index_candidate.pt2"))
        except Exception as problem:
            log.warning("no candidate model tonight (%s), keeping the current one", type(problem).__name__)
        log.info("all hours published")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
