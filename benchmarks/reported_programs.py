"""Programs from public reports of wrong code, and healthy ones that only round differently.

`PYTHON -m benchmarks.reported_programs` compiles each with the torch of that interpreter and compares package
and eager. Which reports are right there is kept as `releases` of `compiler_faults`. It needs torch alone.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks import keep, kept

MIXED = torch.tensor([5, 1, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80])


@dataclass(frozen=True)
class Program:
    """`source` is the number of the issue of pytorch/pytorch that reports it; empty for a healthy program."""

    source: str
    run: Callable[..., object]
    inputs: tuple[torch.Tensor, ...]


def add_itself_flipped(x: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([x], [x.flip(0)])
    return x


PROGRAMS = {
    "cumsum_dtype": Program(
        "189518",
        lambda x: (
            torch.relu(x).sum()
            + torch.ones((2, 4), dtype=torch.bool, device=x.device).cumsum(1, dtype=torch.bfloat16)
        ),
        (torch.randn(3),),
    ),
    "int8_matmul": Program(
        "191308",
        lambda a, b: torch.matmul(a, b).neg(),
        (torch.ones(1, 1, 2, dtype=torch.int8), torch.ones(1, 2, 2, dtype=torch.int8)),
    ),
    "uint8_any": Program(
        "198081", lambda x: torch.any(x + 0) * 200 + 100, (torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8),)
    ),
    "uint8_abs": Program(
        "187018",
        lambda x: torch.cat([-x.abs(), -x.abs()]).sum() + torch.cat([(-x.abs())[:1]] * 2).sum(),
        (torch.tensor([200, 200], dtype=torch.uint8),),
    ),
    "uint8_min": Program("191499", lambda x: torch.min(x + 1), (MIXED.to(torch.uint8),)),
    "int8_argmax": Program("191499", lambda x: torch.argmax(-x), (MIXED.to(torch.int8),)),
    "floor_division": Program(
        "197895",
        lambda a, b: (a // b) * 2,
        (torch.tensor([1.0, 0.5, 6.0, 1.0]), torch.tensor([0.1, 0.1, 0.2, 1 / 3])),
    ),
    "ldexp_dtype": Program(
        "197091", lambda x, y: torch.ldexp(x > 0, y) + 1, (torch.randn(3, 4), torch.randn(3, 4).half())
    ),
    "sinh_near_the_limit": Program(
        "183763", lambda x: torch.sinh(x) * 0.5, (torch.tensor([89.0, 89.3, -89.2] * 8),)
    ),
    "cosh_near_the_limit": Program(
        "183765", lambda x: torch.cosh(x) * 0.5, (torch.tensor([89.0, 89.3, -89.2] * 8),)
    ),
    "acosh_beyond_the_square": Program(
        "198134", lambda x: torch.acosh(x) * 0.5, (torch.full((16,), 1e200, dtype=torch.float64),)
    ),
    "negative_zero_plus_zero": Program(
        "189799",
        lambda x: torch.reciprocal(torch.ceil(x) + torch.zeros_like(x)),
        (torch.tensor([-0.5, -0.1, -0.9]),),
    ),
    "remainder_of_infinity": Program(
        "198057",
        lambda a, b: torch.remainder(a, b) * 2,
        (torch.tensor([5.5, 1e20, 7.0, 1.0] * 4), torch.tensor([torch.inf, 3.0, 0.7, 0.1] * 4)),
    ),
    "cross_entropy_dtype": Program(
        "197098",
        lambda x, weight: torch.nn.functional.binary_cross_entropy(x, 1 - x, weight=weight) + 1,
        (torch.rand(4, 4).bfloat16(), torch.rand(4, 4)),
    ),
    "nearest_of_a_kept_size": Program(
        "198201",
        lambda x: torch.nn.functional.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest") * 2,
        (torch.arange(12.0).reshape(1, 1, 3, 4),),
    ),
    "deviation_of_large_numbers": Program(
        "197089", lambda x: torch.std(x) * 0.5, (torch.linspace(-3, 3, 64) * 1e30,)
    ),
    "foreach_of_itself": Program("198033", add_itself_flipped, (torch.rand(8, 8),)),
    "bf16_chain": Program(
        "",
        lambda x: torch.nn.functional.silu(x.to(torch.bfloat16) * 3).cumsum(0),
        (torch.randn(64, generator=torch.Generator().manual_seed(1)),),
    ),
    "fp16_softmax": Program(
        "",
        lambda x: torch.softmax(x.to(torch.float16) * 4, -1),
        (torch.randn(8, 64, generator=torch.Generator().manual_seed(2)),),
    ),
    "large_sum": Program("", lambda x: (x * 1.1).sum(), (torch.rand(1 << 16),)),
    "layer_norm": Program("", lambda x: torch.nn.functional.layer_norm(x, (256,)), (torch.randn(16, 256),)),
    "attention": Program(
        "",
        lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q),
        (torch.randn(1, 2, 16, 32, generator=torch.Generator().manual_seed(3)),),
    ),
}


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, run: Callable[..., object]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.run(*inputs)


def is_right(program: Program) -> bool:
    """Whether a package gives what eager mode gives, within the tolerance of the dtype."""
    with torch.no_grad(), tempfile.TemporaryDirectory() as directory:
        exported = torch.export.export(Model(program.run), tuple(each.clone() for each in program.inputs))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=f"{directory}/model.pt2")
        found = torch._inductor.aoti_load_package(package)(*(each.clone() for each in program.inputs))
        try:
            torch.testing.assert_close(found, program.run(*program.inputs), equal_nan=True)
        except AssertionError:
            return False
    return True


def main() -> int:
    right = {}
    for name, program in PROGRAMS.items():
        if program.source:
            right[name] = is_right(program)
            print(name, "right" if right[name] else "wrong", flush=True)
    known = kept("compiler_faults")
    known.setdefault("releases", {})[torch.__version__] = right
    keep("compiler_faults", known)
    return 0


if __name__ == "__main__":
    sys.exit(main())
