"""Beat detector releases: package every release of the detector and replay the acceptance strip on it."""
import os
import shutil
import tempfile

import torch
from torch import nn

RATE, BEAT = 250, 64


def strip(seed, leads, seconds=4):
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(seconds * RATE) / RATE
    clean = torch.exp(-(((time % 0.8) - 0.4) ** 2) / 4e-4)
    wander = 0.2 * torch.sin(6.28 * 0.3 * time + torch.rand(leads, 1, generator=generator))
    return clean + wander + 0.03 * torch.randn(leads, seconds * RATE, generator=generator)


class SlopeDetector(nn.Module):
    """2024.1: squared slope, smoothed."""

    def __init__(self):
        super().__init__()
        self.smooth = nn.Parameter(torch.hann_window(BEAT))
        self.threshold = nn.Parameter(torch.tensor(0.6))

    def forward(self, ecg):
        slope = (ecg[:, 1:] - ecg[:, :-1]).square()
        energy = (slope.unfold(1, BEAT, 4) * self.smooth).sum(dim=2)
        energy = energy / energy.amax(dim=1, keepdim=True)
        return torch.sigmoid(20 * (energy - self.threshold))


class MatchedDetector(nn.Module):
    """2024.2: normalised correlation with the averaged beat of the reference cohort."""

    def __init__(self, cohort):
        super().__init__()
        shape = cohort.unfold(1, BEAT, 200)[:, :, :].mean(dim=(0, 1))
        self.template = nn.Parameter(shape - shape.mean())
        self.threshold = nn.Parameter(torch.tensor(0.7))

    def forward(self, ecg):
        windows = ecg.unfold(1, BEAT, 4)
        windows = windows - windows.mean(dim=2, keepdim=True)
        match = (windows * self.template).sum(dim=2)
        scale = windows.square().sum(dim=2).sqrt() * self.template.square().sum().sqrt()
        return torch.sigmoid(20 * (match / (scale + 1e-6) - self.threshold))


def package_release(folder, version, detector):
    leads = torch.export.Dim("leads", min=2, max=64)
    program = torch.export.export(detector, (strip(1, 3),), dynamic_shapes={"ecg": {0: leads}})
    target = os.path.join(folder, f"detector-{version}.pt2")
    return torch._inductor.aoti_compile_and_package(program, package_path=target)


def accept(package, version, detector):
    runner = torch._inductor.aoti_load_package(package)
    for seed, leads in ((5, 3), (6, 12)):
        ecg = strip(seed, leads)
        score = runner(ecg)
        torch.testing.assert_close(score, detector(ecg), rtol=1e-3, atol=1e-4)
        share = (score > 0.5).float().mean().item()
        print(f"{version}: {leads} leads accepted, {share:.1%} of positions inside a beat")


def main():
    folder = tempfile.mkdtemp(prefix="beats_")
    try:
        releases = {"2024.1": SlopeDetector(), "2024.2": MatchedDetector(strip(0, 24))}
        with torch.no_grad():
            for version, detector in releases.items():
                detector.eval()
                accept(package_release(folder, version, detector), version, detector)
        print("all releases accepted")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
