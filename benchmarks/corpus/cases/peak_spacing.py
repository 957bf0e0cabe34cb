"""Rhythm features of a sensor trace; the spacing of peaks comes from an in-house operator."""

import os
import tempfile

import torch
import torch.nn as nn

WINDOW = 256


@torch.library.custom_op("signalkit::spacing", mutates_args=())
def spacing(positions: torch.Tensor) -> torch.Tensor:
    gaps = (positions[1:] - positions[:-1]).float()
    return torch.stack([gaps.min(), gaps.max(), gaps.mean(), gaps.median()])


@spacing.register_fake
def _(positions):
    return positions.new_empty(4, dtype=torch.float32)


class Rhythm(nn.Module):
    def __init__(self):
        super().__init__()
        self.smooth = nn.Conv1d(1, 1, 5, padding=2, bias=False)
        nn.init.constant_(self.smooth.weight, 0.2)
        self.head = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, trace, level):
        smooth = self.smooth(trace[None, None])[0, 0]
        peaks = torch.nonzero(smooth > level).squeeze(1)
        features = torch.cat([spacing(peaks), smooth.mean()[None], smooth.amax()[None]])
        return torch.softmax(self.head(torch.log1p(features.abs())), dim=0)


def traces():
    t = torch.arange(WINDOW) / 10
    yield "pump", torch.sin(t).abs()
    yield "fan", torch.sin(3 * t).abs()
    yield "pump idle", 0.3 * torch.sin(t).abs()
    yield "drill", torch.sin(7 * t).abs()


def main():
    torch.manual_seed(2)
    model = Rhythm().eval()
    level = torch.tensor(0.5)
    with torch.no_grad():
        program = torch.export.export(model, (torch.rand(WINDOW), level))
        path = os.path.join(tempfile.mkdtemp(), "rhythm.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        rhythm = torch._inductor.aoti_load_package(path)
        for name, trace in traces():
            print(f"{name:10}", [round(v, 3) for v in rhythm(trace, level).tolist()], flush=True)


if __name__ == "__main__":
    main()
