"""Descaling controller for commercial kettles: the wear model that runs on the gateway.

Every brew reports eight thermistor readings. The wear model keeps its own brew
count, spreads the heat load over that count and tells when a descaling is due.
"""
import shutil
import tempfile
from pathlib import Path

import torch
from torch import nn

PROBES = 8
DESCALE_AFTER = 5.0


class WearModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.blend = nn.Linear(PROBES, PROBES)
        self.register_buffer("brews", torch.ones(1))
        self.register_buffer("reference", torch.linspace(88.0, 95.0, PROBES))

    def forward(self, probes):
        self.brews.add_(1.0)
        deviation = torch.tanh(self.blend(probes - self.reference) / 40.0)
        load = deviation.abs().mean()
        per_brew = load / self.brews
        due = torch.sigmoid(self.brews - DESCALE_AFTER)
        return per_brew, due


class Gateway:
    def __init__(self, package):
        self.runner = torch._inductor.aoti_load_package(str(package))
        self.log = []

    def brew(self, probes):
        per_brew, due = self.runner(probes)
        self.log.append((per_brew.item(), due.item()))
        return per_brew, due


def readings(brew_number):
    gen = torch.Generator().manual_seed(400 + brew_number)
    return 90.0 + 3.0 * torch.randn(PROBES, generator=gen)


def build(workdir):
    torch.manual_seed(11)
    model = WearModel().eval()
    program = torch.export.export(model, (readings(0),))
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(workdir / "kettle_wear.pt2")
    )
    return model, package


def main():
    workdir = Path(tempfile.mkdtemp(prefix="kettle_"))
    try:
        with torch.no_grad():
            model, package = build(workdir)
            gateway = Gateway(package)

            first = gateway.brew(readings(1))
            expected = model(readings(1))
            torch.testing.assert_close(first, expected)
            print(f"brew 1: load {first[0].item():.4f}, due {first[1].item():.4f}")

            for number in range(2, 8):
                got = gateway.brew(readings(number))
                expected = model(readings(number))
                print(f"brew {number}: load {got[0].item():.4f}, due {got[1].item():.4f}")
                torch.testing.assert_close(
                    got, expected, msg=lambda text: f"gateway and bench disagree at brew {number}\n{text}"
                )
            print("descaling schedule agrees with the bench model")
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


if __name__ == "__main__":
    main()
