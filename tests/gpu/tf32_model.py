"""Child of the GPU tests: `tf32_model.py DIRECTORY` compiles two products as Triton kernels that use TF32.

The precision is a choice of the process that compiles: kernels of torch's own templates keep it, and a worker
that runs the program beside the package computes in full float32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

TEMPLATES = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}


class Products(nn.Module):  # type: ignore[misc]
    """Sums of 2,048 products, so that TF32 shows beside the rounding of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2048, 256)
        self.second = nn.Linear(256, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def main(directory: Path) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model, x = Products().cuda().eval(), torch.randn(512, 2048, device="cuda")
    with torch.no_grad():
        exported = torch.export.export(model, (x,))
        torch.export.save(exported, directory / "tf32.exported.pt2")
        torch.save((x,), directory / "tf32.inputs.pt")
        package = str(directory / "tf32.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=TEMPLATES)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
