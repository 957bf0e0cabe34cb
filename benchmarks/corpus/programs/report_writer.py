"""Scores machines with a package and writes a report per site."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

STATES = ["fine", "watch", "service", "stop"]
CONTACTS = {"north": "Ida", "south": "Ben"}


class Health(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.inp = nn.Linear(14, d)
        self.norm = nn.LayerNorm(d)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.out = nn.Linear(d, len(STATES))

    def forward(self, readings):
        h = torch.tanh(self.inp(readings))
        for layer in self.layers:
            h = h + F.gelu(layer(self.norm(h)))
        return self.out(h)


def report(site, scores):
    """One line per machine, addressed to who looks after the site."""
    lines = [f"site {site}, for {CONTACTS[site]}"]
    for number, row in enumerate(scores):
        lines.append(f"  machine {number}: {STATES[row.argmax().item()]}")
    return "\n".join(lines)


def main():
    torch.manual_seed(33)
    model = Health().eval()
    package = os.path.join(tempfile.mkdtemp(), "health.pt2")
    with torch.no_grad():
        exported = torch.export.export(
            model, (torch.randn(4, 14),), dynamic_shapes=({0: Dim("n", min=1, max=256)},)
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        runner = torch._inductor.aoti_load_package(package)
        for site, machines in (("north", 12), ("south", 1), ("harbour", 7)):
            scores = runner(torch.randn(machines, 14))
            print(report(site, scores), flush=True)


if __name__ == "__main__":
    main()
