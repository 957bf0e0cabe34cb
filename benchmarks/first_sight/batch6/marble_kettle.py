"""Smart meter settlement: repair quarter-hour profiles, then estimate the daily charge."""
import os
import shutil
import tempfile

import torch
from torch import nn

SLOTS = 96


@torch.library.custom_op("metering::repair", mutates_args=())
def repair(profile: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """Carry the last received reading forward over the slots that never arrived."""
    missing = (~received).nonzero()
    if missing.numel() == 0:
        return profile
    slots = torch.arange(profile.shape[1]).expand_as(profile)
    last = torch.where(received, slots, 0).cummax(dim=1).values
    return profile.gather(1, last)


@repair.register_fake
def _(profile, received):
    return torch.empty_like(profile)


class Settlement(nn.Module):
    def __init__(self):
        super().__init__()
        hours = torch.arange(SLOTS) / 4
        self.register_buffer("tariff", torch.where((hours >= 7) & (hours < 21), 0.31, 0.22))
        self.loss = nn.Parameter(torch.tensor(1.035))

    def forward(self, profile, received):
        energy = torch.ops.metering.repair(profile, received) * self.loss
        charge = (energy * self.tariff).sum(dim=1)
        return charge, energy.amax(dim=1)


class Day:
    def __init__(self, date, meters, dropouts):
        generator = torch.Generator().manual_seed(sum(map(ord, date)))
        self.date = date
        self.profile = 0.2 + torch.rand(meters, SLOTS, generator=generator)
        self.received = torch.ones(meters, SLOTS, dtype=torch.bool)
        for meter, first, last in dropouts:
            self.received[meter, first:last] = False


def settle(runner, days):
    totals = {}
    for day in days:
        charge, peak = runner(day.profile, day.received)
        totals[day.date] = charge.sum().item()
        share = day.received.float().mean().item()
        print(f"{day.date}: {len(charge)} meters, {share:.1%} received, "
              f"{totals[day.date]:.2f} EUR, peak {peak.max().item():.3f} kWh")
    return totals


def main():
    folder = tempfile.mkdtemp(prefix="settle_")
    try:
        model = Settlement().eval()
        meters = torch.export.Dim("meters", min=2, max=4096)
        sample = Day("2024-02-27", 5, [(1, 30, 34)])
        with torch.no_grad():
            program = torch.export.export(
                model,
                (sample.profile, sample.received),
                dynamic_shapes={"profile": {0: meters}, "received": {0: meters}},
            )
            package = torch._inductor.aoti_compile_and_package(
                program, package_path=os.path.join(folder, "settlement.pt2")
            )
            runner = torch._inductor.aoti_load_package(package)
            week = [
                Day("2024-03-04", 40, [(3, 10, 22), (17, 60, 61)]),
                Day("2024-03-05", 40, [(9, 1, 5)]),
                Day("2024-03-06", 41, []),
                Day("2024-03-07", 41, [(40, 90, 96)]),
            ]
            totals = settle(runner, week)
        print(f"week settled: {sum(totals.values()):.2f} EUR")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
