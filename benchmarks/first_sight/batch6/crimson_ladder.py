"""Climb rates of a gondola fleet from height readings (edge box, bfloat16 throughout)."""

import os
import tempfile

import torch

WINDOW = 128
CABINS = 24


class ClimbRate(torch.nn.Module):
    """Rate between neighbouring readings, smoothed by a small filter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("taps", torch.tensor([0.25, 0.5, 0.25]))

    def forward(self, heights, seconds):
        step = seconds[1:] - seconds[:-1]
        rate = (heights[:, 1:] - heights[:, :-1]) / step
        smooth = (
            self.taps[0] * rate[:, :-2] + self.taps[1] * rate[:, 1:-1] + self.taps[2] * rate[:, 2:]
        )
        return smooth.amax(1), smooth.mean(1)


def build(folder, device):
    cabins = torch.export.Dim("cabins", min=2, max=512)
    example = (
        torch.randn(CABINS, WINDOW, device=device, dtype=torch.bfloat16),
        torch.arange(WINDOW, device=device).to(torch.bfloat16),
    )
    program = torch.export.export(
        ClimbRate().to(device, torch.bfloat16).eval(),
        example,
        dynamic_shapes={"heights": {0: cabins}, "seconds": None},
    )
    path = os.path.join(folder, "climb_rate.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


class Recorder:
    """Readings once per second since the start of the shift."""

    def __init__(self, device):
        self.device = device
        self.seconds = 0.0
        self.heights = torch.rand(CABINS, 1, device=device)

    def window(self):
        clock = self.seconds + torch.arange(WINDOW, device=self.device, dtype=torch.float64)
        wobble = 0.4 * torch.rand(CABINS, WINDOW, device=self.device)
        drift = torch.linspace(0.0, 6.0, WINDOW, device=self.device)
        self.seconds += WINDOW
        return {"heights": self.heights + drift + wobble, "seconds": clock}


def to_model(window):
    return {name: value.to(torch.bfloat16) for name, value in window.items()}


def check(number, peak, mean):
    for name, value in (("peak", peak), ("mean", mean)):
        if not torch.isfinite(value).all():
            bad = int((~torch.isfinite(value)).sum())
            raise RuntimeError(f"window {number}: {bad} of {CABINS} {name} rates are not finite")
    print(f"window {number}: peak {peak.max().item():.3f}, mean {mean.float().mean().item():+.3f}")


def main(device="cuda"):
    torch.manual_seed(8)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(folder, device)
        recorder = Recorder(device)
        for number in range(1, 5):
            batch = to_model(recorder.window())
            peak, mean = model(batch["heights"], batch["seconds"])
            check(number, peak, mean)
    print("shift finished")


if __name__ == "__main__":
    main()
