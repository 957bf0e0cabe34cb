"""Research hands a model over; operations load whatever lies in the release directory."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


class Wear(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.inp = nn.Linear(16, d)
        self.norm = nn.LayerNorm(d)
        self.body = nn.Sequential(nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d))
        self.out = nn.Linear(d, 1)

    def forward(self, vibration):
        h = F.gelu(self.inp(vibration))
        return self.out(h + self.body(self.norm(h))).squeeze(-1)


def release(model, directory, version, compiled):
    """Writes one version into the release directory."""
    path = os.path.join(directory, f"wear-{version}.pt2")
    with torch.no_grad():
        program = torch.export.export(
            model, (torch.randn(4, 16),), dynamic_shapes=({0: Dim("n", min=1, max=512)},)
        )
        if compiled:
            torch._inductor.aoti_compile_and_package(program, package_path=path)
        else:
            torch.export.save(program, path)
    return path


def main():
    torch.manual_seed(22)
    directory = tempfile.mkdtemp()
    for version, compiled in ((1, True), (2, False)):
        path = release(Wear().eval(), directory, version, compiled)
        runner = torch._inductor.aoti_load_package(path)
        print("version", version, runner(torch.randn(3, 16)).tolist(), flush=True)


if __name__ == "__main__":
    main()
