"""Packages that a wrong compiler pass made: `python -m tests.wrong_launches.models NAME DIRECTORY [DEVICE]`.

Each is compiled from `NAME.exported.pt2` and called with `NAME.inputs.pt`. The pass changes constants of
Inductor's graph, so that some kernels differ from the exported program.

`one`: layer 1 scales by 0.25 in place of 0.5. `two`: layers 0 and 2 do. `clean`: none does. `nan`: layer 1
takes the root of x*x - 1 in place of x*x + 1. `half` is in bfloat16, with the faults of `two`. `wrapped`
computes a 64-bit index of its C++ kernel in 32 bits. `sized` ignores all rows after the 100 for which it was
compiled, and is called with 103.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import sympy  # type: ignore[import-untyped]
import torch
import torch._inductor.config as inductor
from torch import nn
from torch._inductor.codegen import cpp

SCALE, WRONG_SCALE = 0.5, 0.25
LIMIT, WRONG_LIMIT = 1000, 100


class Scaled(nn.Module):  # type: ignore[misc]
    """Four layers whose kernels are all alike: tanh of the product, scaled."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(d, d) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for lin in self.lins:
            x = torch.tanh(lin(x)) * SCALE
        return x


class Rooted(nn.Module):  # type: ignore[misc]
    """Two layers with a root that is defined everywhere."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sqrt(self.first(x) ** 2 + 1.0)
        return self.second(x).relu()


class Offset(nn.Module):  # type: ignore[misc]
    """The last rows of a table, which begin 64 elements after its start."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(12, d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.table[4:]) * SCALE


class Coupled(nn.Module):  # type: ignore[misc]
    """Each output depends on all rows, up to a limit."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.lin = nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.lin(x))
        return (torch.sigmoid(y @ y.t()) * (torch.arange(x.shape[0], device=x.device) < LIMIT)).sum(-1)


def wrapped(expression: sympy.Expr) -> str:
    """C++ for an index whose last rows use a 32-bit product. It stays within the table."""
    first, rest = sympy.sympify(expression).as_coeff_Add()
    text, factor = cpp.cexpr(rest), 1 << 26
    if first < 32:
        return f"static_cast<int64_t>({cpp.cexpr(expression)})"
    return f"static_cast<int64_t>({first}L + static_cast<int32_t>({factor}L*({text})) / {factor}L)"


def changing(target: object, places: set[int], old: float, new: float) -> Callable[[torch.fx.Graph], None]:
    """A pass that replaces a constant of some nodes with this target and constant."""

    def run(graph: torch.fx.Graph) -> None:
        nodes = [node for node in graph.nodes if node.target is target and old in node.args]
        for place in places:
            node = nodes[place]
            node.args = tuple(new if value == old else value for value in node.args)

    return run


MUL, ADD, LT = torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor, torch.ops.aten.lt.Scalar
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.dtype, Callable[[torch.fx.Graph], None] | None]] = {
    "clean": (Scaled, torch.float32, None),
    "one": (Scaled, torch.float32, changing(MUL, {1}, SCALE, WRONG_SCALE)),
    "two": (Scaled, torch.float32, changing(MUL, {0, 2}, SCALE, WRONG_SCALE)),
    "nan": (Rooted, torch.float32, changing(ADD, {0}, 1.0, -1.0)),
    "wrapped": (Offset, torch.float32, None),
    "sized": (Coupled, torch.float32, changing(LT, {0}, LIMIT, WRONG_LIMIT)),
    "half": (Scaled, torch.bfloat16, changing(MUL, {0, 2}, SCALE, WRONG_SCALE)),
}


def main(name: str, directory: str, device: str = "cpu") -> None:
    torch.manual_seed(0)
    where = Path(directory)
    build, dtype, wrong = MODELS[name]
    model, x = build().to(device, dtype), torch.randn(8, 16).to(device, dtype)
    rows = torch.export.Dim("rows", max=WRONG_LIMIT) if name == "sized" else None
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: rows},) if rows is not None else None)
    if rows is not None:
        x = torch.randn(WRONG_LIMIT + 3, 16).to(device, dtype)
        torch.save([model(x)], where / f"{name}.expected.pt")
    torch.export.save(exported, where / f"{name}.exported.pt2")
    torch.save([x], where / f"{name}.inputs.pt")
    partial = where / f"{name}.partial.pt2"
    if name == "wrapped":
        cpp.cexpr_index = wrapped
    with torch.no_grad(), inductor.patch(post_grad_custom_post_pass=wrong):
        torch._inductor.aoti_compile_and_package(exported, package_path=str(partial))
    partial.rename(where / f"{name}.pt2")


if __name__ == "__main__":
    main(*sys.argv[1:])
