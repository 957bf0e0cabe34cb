"""Seismic event encoder: 26 routing stages over a bank of prototypes, embedded once per trace window."""
import os
import shutil
import tempfile

import torch
from torch import nn

WIDTH, BANK, STAGES = 32, 12, 26


class Route(nn.Module):
    """Soft assignment to prototypes; the more undecided the assignment, the smaller the update."""

    def __init__(self, sharpness):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(BANK, WIDTH) / WIDTH**0.5)
        self.values = nn.Parameter(torch.randn(BANK, WIDTH) * 0.1)
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, hidden):
        share = torch.softmax(hidden @ self.keys.T * self.sharpness, dim=-1)
        undecided = -(share * share.log()).sum(dim=-1, keepdim=True)
        return hidden + torch.exp(-undecided) * (share @ self.values)


class Stage(nn.Module):
    def __init__(self, sharpness):
        super().__init__()
        self.route = Route(sharpness)
        self.gain = nn.Parameter(1 + 0.02 * torch.randn(WIDTH))
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q)

    def forward(self, hidden):
        return self.route(torch.nn.functional.silu(hidden @ self.turn) * self.gain + 0.8 * hidden)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        sharp = [1.0 + 0.01 * k for k in range(STAGES)]
        sharp[17] = 7.0
        self.lift = nn.Linear(20, WIDTH)
        self.stages = nn.ModuleList(Stage(s) for s in sharp)
        self.out = nn.LayerNorm(WIDTH)

    def forward(self, windows):
        hidden = self.lift(windows)
        for stage in self.stages:
            hidden = stage(hidden)
        return self.out(hidden)


def traces(seed, windows, clipped=()):
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(windows, 20, generator=generator)
    for row in clipped:
        data[row] = data[row].sign() * 2.0
    return data


def embed(runner, label, windows):
    vectors = runner(windows)
    unusable = (~torch.isfinite(vectors)).any(dim=1).nonzero().flatten().tolist()
    if unusable:
        raise ArithmeticError(f"{label}: embedding of windows {unusable} is not finite")
    print(f"{label}: {len(vectors)} windows, spread {vectors.std(dim=0).mean().item():.4f}")


def main():
    torch.manual_seed(14)
    folder = tempfile.mkdtemp(prefix="seis_")
    try:
        model = Encoder().eval()
        batch = torch.export.Dim("windows", min=2, max=256)
        with torch.no_grad():
            program = torch.export.export(model, (traces(1, 8),), dynamic_shapes={"windows": {0: batch}})
            package = torch._inductor.aoti_compile_and_package(
                program, package_path=os.path.join(folder, "encoder.pt2")
            )
            runner = torch._inductor.aoti_load_package(package)
            embed(runner, "station KIP", traces(2, 16))
            embed(runner, "station PMSA", traces(3, 24))
            embed(runner, "station SNZO", traces(4, 24, clipped=[19]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
