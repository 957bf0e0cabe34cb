"""Public reports of wrong code, each bisected to the compiler's decision.

`python -m benchmarks.compiler_faults [--programs NAME ...]`. Every report fails through
AOTInductor on torch 2.13 for the CPU, where eager is right. The healthy programs round differently, and must
not be bisected at all. Writes compiler_faults.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import torch

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload
from mcp_server.tools.bisect import Bisected, bisect
from mcp_server.tools.context import Context

RESULTS = Path(__file__).with_suffix(".json")
MIXED = torch.tensor([5, 1, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80])


@dataclass(frozen=True)
class Program:
    """`source` is the thread that reports it, as NUMBER of pytorch/pytorch; empty for a healthy program."""

    source: str
    run: Callable[..., object]
    inputs: tuple[torch.Tensor, ...]


PROGRAMS = {
    "cumsum_dtype": Program(
        "189518",
        lambda x: torch.relu(x).sum() + torch.ones((2, 4), dtype=torch.bool).cumsum(1, dtype=torch.bfloat16),
        (torch.randn(3),),
    ),
    "int8_matmul": Program(
        "191308",
        lambda a, b: torch.matmul(a, b).neg(),
        (torch.ones(1, 1, 2, dtype=torch.int8), torch.ones(1, 2, 2, dtype=torch.int8)),
    ),
    "uint8_any": Program(
        "198081",
        lambda x: torch.any(x + 0) * 200 + 100,
        (torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8),),
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
        "197091",
        lambda x, y: torch.ldexp(x > 0, y) + 1,
        (torch.randn(3, 4), torch.randn(3, 4).half()),
    ),
    "sinh_near_the_limit": Program(
        "183763", lambda x: torch.sinh(x) * 0.5, (torch.tensor([89.0, 89.3, -89.2] * 8),)
    ),
    "cosh_near_the_limit": Program(
        "183765", lambda x: torch.cosh(x) * 0.5, (torch.tensor([89.0, 89.3, -89.2] * 8),)
    ),
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


def outcome(program: Program, directory: Path) -> dict[str, object]:
    """What `bisect` says of one program, and what it cost."""
    torch.export.save(torch.export.export(Model(program.run), program.inputs), directory / "program.pt2")
    torch.save(list(program.inputs), directory / "inputs.pt")
    workload = ExportedWorkload(exported=directory / "program.pt2", inputs=directory / "inputs.pt")
    context = Context(directory=directory / "job", python=Path(sys.executable))
    context.directory.mkdir()
    start = time.monotonic()
    try:
        found: Bisected = anyio.run(partial(bisect, context, workload))
    except ProblemError as problem:
        return {"outcome": "no failure" if "does not fail" in str(problem) else str(problem)}
    workaround = found.workaround
    return {
        "outcome": found.outcome,
        "kind": [one.kind for one in found.decisions],
        "named": [", ".join(one.rewrites) or one.operator or one.name for one in found.decisions],
        "compiles": found.compiles,
        "workaround": workaround.code if workaround else "",
        "whole": workaround.whole if workaround else "",
        "price": workaround.price if workaround else None,
        "seconds": round(time.monotonic() - start, 1),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="*", default=sorted(PROGRAMS), help="names; default all")
    names = parser.parse_args(argv).programs
    known = json.loads(RESULTS.read_text())["programs"] if RESULTS.exists() else {}
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            known[name] = {"report": PROGRAMS[name].source, **outcome(PROGRAMS[name], Path(directory))}
        print(name, known[name], flush=True)
        written = {"torch": torch.__version__, "cores": len(os.sched_getaffinity(0)), "programs": known}
        RESULTS.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
