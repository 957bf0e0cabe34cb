"""Programs with a known memory fault: small AOTInductor models, each with inputs that make it go wrong.

Runs in any interpreter that has torch; imports nothing of this project. `triton_programs` adds those that
need triton. `Truth` says what a tool must find; no tool reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim

Tensors = tuple[torch.Tensor, ...]
ALL, CUDA, CPU = ("cuda", "cpu"), ("cuda",), ("cpu",)


@dataclass(frozen=True)
class Truth:
    """What is wrong. Empty fields are not judged; `guilty` lists the kinds of party that are right."""

    kernel: str = ""
    argument: str = ""
    guilty: tuple[str, ...] = ()
    input_index: int | None = None
    fault: bool = True


@dataclass(frozen=True)
class Program:
    """One model with good and bad inputs; `configs` are options of Inductor."""

    name: str
    kind: str
    build: Callable[[], nn.Module]
    good: Callable[[], Tensors]
    bad: Callable[[], Tensors]
    truth: Truth
    dynamic: Any = None
    devices: tuple[str, ...] = CUDA
    configs: tuple[tuple[str, Any], ...] = ()
    keep_devices: bool = False
    tool: str = "auto"


PROGRAMS: dict[str, Program] = {}


def add(program: Program) -> None:
    PROGRAMS[program.name] = program


def rows_of(n: int, width: int = 16) -> torch.Tensor:
    return torch.linspace(-1, 1, n * width).reshape(n, width)


def ids_of(*values: int) -> torch.Tensor:
    return torch.tensor(values)


BATCH = Dim("b", min=2, max=4096)
NO_ASSERTS = (("assert_indirect_indexing", False),)


class Gather(nn.Module):
    """Generated code that reads rows by an index of the caller."""

    def __init__(self, rows: int = 64) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)
        self.register_buffer("table", torch.randn(rows, 16))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table[ids].sin() + x)


class ScatterRows(nn.Module):
    """Generated code that adds to rows by an index of the caller."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(32, 16, device=x.device).index_put((ids,), x.cos(), accumulate=True).exp()


class Static(nn.Module):
    """Static sizes throughout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2 + x.cos()


def _generated() -> None:
    good = lambda: (rows_of(8), torch.arange(8))  # noqa: E731
    dynamic = ({0: BATCH}, {0: BATCH})
    cases = {
        "generated_read_far": ("far", 100_000_000),
        "generated_read_adjacent": ("adjacent", 64),
        "generated_read_negative": ("negative index", -70_000_000),
    }
    for name, (kind, value) in cases.items():
        add(
            Program(
                name,
                f"generated read, {kind}",
                Gather,
                good,
                lambda value=value: (rows_of(8), ids_of(0, 1, 2, value, 4, 5, 6, 7)),  # type: ignore[misc]
                Truth("fused", "table", ("input",), 1),
                dynamic,
                ALL,
                NO_ASSERTS,
            )
        )
    add(
        Program(
            "generated_assert",
            "generated read, index assert on",
            Gather,
            good,
            lambda: (rows_of(8), ids_of(0, 1, 2, 64, 4, 5, 6, 7)),
            Truth("fused", "table", ("input",), 1),
            dynamic,
            ALL,
        )
    )
    add(
        Program(
            "generated_write",
            "generated atomic write",
            ScatterRows,
            good,
            lambda: (rows_of(8), ids_of(0, 1, 2, 90_000_000, 4, 5, 6, 7)),
            Truth("fused", "buf", ("input",), 1),
            dynamic,
            ALL,
            NO_ASSERTS,
        )
    )
    add(
        Program(
            "static_size",
            "wrong size of a static input",
            Static,
            lambda: (rows_of(4096, 64),),
            lambda: (rows_of(16, 64),),
            Truth("fused", "arg", ("input",), 0),
            None,
            ALL,
        )
    )
    add(
        Program(
            "input_stride",
            "wrong stride of an input",
            Static,
            lambda: (rows_of(64, 64),),
            lambda: (rows_of(64, 1).expand(64, 64),),
            Truth("fused", "arg", ("input",), 0),
            None,
            ALL,
        )
    )
    add(
        Program(
            "index_dtype",
            "int32 ids where int64 was compiled",
            Gather,
            lambda: (rows_of(4096), torch.arange(4096) % 64),
            lambda: (rows_of(4096), (torch.arange(4096) % 64).to(torch.int32)),
            Truth("fused", "", ("input",), 1),
            dynamic,
            ALL,
            NO_ASSERTS,
        )
    )
    add(Program("clean", "no fault", Gather, good, good, Truth(fault=False), dynamic, ALL))


_generated()


@torch.library.custom_op("aotifaults::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x[::4].contiguous()


@halve.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class FakeShape(nn.Module):
    """The operator returns a quarter of the rows that its fake function promises."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return halve(x.sin()).cos() + 1


add(
    Program(
        "fake_shape",
        "fake function of an operator promises more",
        FakeShape,
        lambda: (rows_of(4096),),
        lambda: (rows_of(4096),),
        Truth("fused", "buf", ("op",)),
        ({0: BATCH},),
        ALL,
    )
)


def export(program: Program, device: str) -> torch.export.ExportedProgram:
    """The exported model on `device`, with the dynamic shapes of the program."""
    torch.manual_seed(0)
    model = program.build().to(device).train(False)
    sample = tuple(tensor.to(device) for tensor in program.good())
    with torch.no_grad():
        return torch.export.export(model, sample, dynamic_shapes=program.dynamic)


def bad_inputs(program: Program, device: str) -> list[torch.Tensor]:
    """The failing inputs; `keep_devices` leaves all but the first on the host."""
    tensors = [_moved(tensor, device) for tensor in program.bad()]
    return [tensors[0], *program.bad()[1:]] if program.keep_devices else tensors


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """On another device with the same strides over the same memory, which `to` would make dense."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = tensor.as_strided((count,), (1,), 0).to(device)
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
