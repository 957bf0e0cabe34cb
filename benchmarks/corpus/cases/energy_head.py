"""Half-precision molecule scorer: large molecules give large sums."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

DEVICE = "cuda"


class Energy(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.inp = nn.Linear(16, d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.charge = nn.Linear(d, d)
        self.out = nn.Linear(d, 1)

    def forward(self, atoms, charges):
        h = F.silu(self.inp(atoms))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        pair = charges @ charges.transpose(1, 2)
        weight = (pair @ pair) / 65504.0
        h = weight @ self.charge(self.norm(h))
        return self.out(F.normalize(h.mean(1), dim=-1)).squeeze(-1)


def molecules(count, atoms, strength):
    x = torch.randn(count, atoms, 16, device=DEVICE, dtype=torch.float16)
    q = torch.rand(count, atoms, 8, device=DEVICE, dtype=torch.float16) * strength
    return x, q


def main():
    torch.manual_seed(8)
    with torch.device(DEVICE):
        model = Energy().half().eval()
    package = os.path.join(tempfile.mkdtemp(), "energy.pt2")
    b, a = Dim("b", min=2, max=256), Dim("a", min=2, max=512)
    with torch.no_grad():
        exported = torch.export.export(
            model, molecules(4, 20, 1.0), dynamic_shapes=({0: b, 1: a}, {0: b, 1: a})
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
    runner = torch._inductor.aoti_load_package(package)
    for name, atoms, strength in (("water", 3, 1.0), ("peptide", 60, 1.5), ("protein", 480, 6.0)):
        energy = runner(*molecules(8, atoms, strength))
        torch.cuda.synchronize()
        if not bool((energy.abs() < 100).all()):
            raise RuntimeError(f"implausible energy for {name}: {energy.tolist()}")
        print(name, [round(v, 3) for v in energy.tolist()[:3]], flush=True)


if __name__ == "__main__":
    main()
