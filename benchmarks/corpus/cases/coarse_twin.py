"""A half-size twin of a model answers first; the difference to the large one is written down."""

import os
import tempfile

import torch
from torch import nn
from torch.export import Dim


class Grade(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, d), nn.GELU(), nn.Linear(d, d), nn.GELU(), nn.Linear(d, 6))

    def forward(self, x):
        return self.body(x)


def main():
    torch.manual_seed(54)
    large = Grade().eval()
    twin = Grade().eval()
    twin.load_state_dict(large.state_dict())
    twin.to(torch.bfloat16)
    package = os.path.join(tempfile.mkdtemp(), "grade.pt2")
    with torch.no_grad():
        n = Dim("n", min=1, max=128)
        sample = (torch.randn(4, 32, dtype=torch.bfloat16),)
        exported = torch.export.export(twin, sample, dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        grade = torch._inductor.aoti_load_package(package)
        for rows in (4, 90):
            x = torch.randn(rows, 32)
            gap = (grade(x.to(torch.bfloat16)).float() - large(x)).abs().max()
            if gap > 0.1:
                raise ValueError(f"the twin is off by {float(gap):.3f}")
            print("rows", rows, "largest difference", round(float(gap), 4), flush=True)
    print("graded", flush=True)


if __name__ == "__main__":
    main()
