"""Compass rose for a ski-track logger: headings packed into one signed byte.

Headings are kept as binary angles, 256 steps per turn, so that turning past south
continues at the other end of the signed range. The track server checks every
batch against its own packing before the bytes are archived.
"""
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.export import Dim

STEPS_PER_TURN = 256


class PackHeading(nn.Module):
    def __init__(self, mounting_deg=7.5):
        super().__init__()
        self.mounting = mounting_deg

    def forward(self, heading_deg, yaw_rate):
        mounted = heading_deg + self.mounting
        steps = torch.round(mounted * (STEPS_PER_TURN / 360.0))
        packed = steps.to(torch.int8)
        swing = torch.sqrt(yaw_rate.square() + 0.01)
        return packed, swing


def server_packing(heading_deg, mounting):
    steps = np.round((heading_deg + mounting).numpy() * np.float32(STEPS_PER_TURN / 360.0))
    return ((steps.astype(np.int64) + 128) % STEPS_PER_TURN - 128).astype(np.int8)


def run_down_slope(seed, samples, start_deg, turn_deg):
    gen = torch.Generator().manual_seed(seed)
    sweep = torch.linspace(0.0, turn_deg, samples)
    heading = start_deg + sweep + 0.5 * torch.randn(samples, generator=gen)
    return heading, torch.randn(samples, generator=gen)


class Archive:
    def __init__(self, pack, mounting):
        self.pack = pack
        self.mounting = mounting
        self.bytes_kept = 0

    def keep(self, name, heading, yaw_rate):
        packed, swing = self.pack(heading, yaw_rate)
        expected = server_packing(heading, self.mounting)
        wrong = np.flatnonzero(packed.numpy() != expected)
        if wrong.size:
            at = int(wrong[0])
            raise ValueError(
                f"{name}: {wrong.size} of {len(expected)} headings packed differently, first at sample {at}: "
                f"{int(packed[at])} instead of {int(expected[at])}"
            )
        self.bytes_kept += packed.numel()
        print(f"{name}: {packed.numel()} bytes, mean swing {swing.mean().item():.3f}")


def main():
    workdir = Path(tempfile.mkdtemp(prefix="track_"))
    try:
        model = PackHeading().eval()
        samples = Dim("samples", min=2, max=4096)
        program = torch.export.export(
            model,
            run_down_slope(0, 32, 0.0, 40.0),
            dynamic_shapes=({0: samples}, {0: samples}),
        )
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(workdir / "heading.pt2")
        )
        pack = torch._inductor.aoti_load_package(package)

        with torch.no_grad():
            heading, yaw_rate = run_down_slope(1, 64, -60.0, 150.0)
            assert torch.equal(pack(heading, yaw_rate)[0], model(heading, yaw_rate)[0])

            archive = Archive(pack, model.mounting)
            archive.keep("morning run", heading, yaw_rate)
            archive.keep("forest run", *run_down_slope(2, 128, -150.0, 230.0))
            archive.keep("summit run", *run_down_slope(3, 160, 120.0, 120.0))
        print(f"archived {archive.bytes_kept} bytes")
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


if __name__ == "__main__":
    main()
