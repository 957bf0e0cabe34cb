"""Nightly job: coherence maps of hydrophone pairs, first bin kept for the report."""

import os
import tempfile

import torch

SENSORS = 512
BINS = 256
BUDGET = 3 << 30
HOURS = 24


class Coherence(torch.nn.Module):
    """Coherence of each pair of sensors, for every frequency bin."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(BINS) + 0.1)

    def forward(self, spectra):
        weighted = spectra * self.window
        left = weighted.t().unsqueeze(2)
        right = weighted.t().unsqueeze(1)
        return left * right / (left.abs() + right.abs() + 1e-3)


def build(module, folder):
    program = torch.export.export(module, (torch.randn(SENSORS, BINS, device="cuda"),))
    path = os.path.join(folder, "coherence.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


class Report:
    """Keeps the lowest bin of each hour, which is what the biologists look at."""

    def __init__(self):
        self.hours = []

    def add(self, maps):
        lowest = maps[0]
        self.hours.append(lowest)

    def summary(self):
        return torch.stack(self.hours).mean(0)


def limit_memory(amount):
    """The card is shared with the detector; the job has a fixed part of it."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(amount / total)


def main():
    torch.manual_seed(41)
    module = Coherence().cuda().eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(module, folder)
        torch.cuda.empty_cache()
        limit_memory(BUDGET)

        trial = torch.randn(SENSORS, BINS, device="cuda")
        torch.testing.assert_close(model(trial)[7], module(trial)[7], rtol=1e-4, atol=1e-4)

        report = Report()
        for hour in range(HOURS):
            spectra = torch.randn(SENSORS, BINS, device="cuda")
            report.add(model(spectra))
            print(f"hour {hour:02d} done", flush=True)
        print(f"night: {report.summary().abs().mean().item():.4f}")


if __name__ == "__main__":
    main()
