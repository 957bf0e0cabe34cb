"""Child of the GPU tests: `tf32_model.py DIRECTORY` compiles models whose products use TF32.

Convolutions use it in every process. For the two products that become Triton kernels, the compiling process
chooses the precision: kernels from torch's templates keep it, while a worker that runs the program beside the
package computes in full float32.
"""

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


class Convolutions(nn.Module):  # type: ignore[misc]
    """Three layers whose result is divided by a small number, which multiplies their rounding."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 16), (16, 16), (16, 3))
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in sizes)
        self.norms = nn.ModuleList(nn.GroupNorm(4, 16) for _each in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layers[0](x)
        h = h + self.layers[1](nn.functional.silu(self.norms[0](h)))
        return (x - self.layers[2](nn.functional.silu(self.norms[1](h)))) / 0.01


def make(directory: Path, name: str, model: nn.Module, x: torch.Tensor, configs: dict[str, object]) -> None:
    with torch.no_grad():
        exported = torch.export.export(model.cuda().eval(), (x,))
        torch.export.save(exported, directory / f"{name}.exported.pt2")
        torch.save((x,), directory / f"{name}.inputs.pt")
        package = str(directory / f"{name}.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=configs)


def main(directory: Path) -> None:
    torch.manual_seed(0)
    make(directory, "convolved", Convolutions(), torch.randn(64, 3, 12, 12, device="cuda"), {})
    torch.set_float32_matmul_precision("high")
    make(directory, "tf32", Products(), torch.randn(512, 2048, device="cuda"), TEMPLATES)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
