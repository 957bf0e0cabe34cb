"""`repeat`: one call in fresh loads of its package, with other bytes in new memory for the last one."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .beside import Bench, Marks
from .compare import compare
from .imports import import_all
from .inputs import flatten, read
from .loading import load
from .report import Report

# glibc fills what malloc gives out with the complement of this byte, what free takes back with the byte
# itself (malloc.c, alloc_perturb and free_perturb). 0x7f7f7f7f is 3.4e38 as float32, 0x3f3f3f3f is 0.75.
M_PERTURB = -6
FILLS = {"first": 0x80, "second": 0x80, "filled": 0xC0}

# Sums in another order, as several threads make them, are no other result.
RELATIVE = 1e-3


def operate(request: dict[str, Any], report: Report) -> None:
    """Event `repeated` (`run`, `equal`, `outputs`) for the second and the last call, held against the first.

    Request: what `run` takes, and `probes`: whether the package is instrumented; then an event `rerun` tells
    the checksum of each tensor that a launch wrote. Random numbers go on from call to call, so that they
    differ in the second one; what new memory holds differs in the last one. Where the C library cannot fill
    memory (event `unfilled`), there is no last call.
    """
    import_all(list(request.get("extra_imports", ())), report)
    in_spec = load(request, report).get_call_spec()[0]
    report.event("reading_inputs")
    bench = Bench({"probes": False, **request}, flatten(read(request), in_spec), report)
    first: list[torch.Tensor] = []
    for kind, byte in FILLS.items():
        if not perturb(byte) and kind == "filled":
            report.event("unfilled")
            break
        outputs = [tensor.clone() for tensor in bench.run(kind, Marks(kind, report).take)]
        if kind == "first":
            first = outputs
        else:
            tell(kind, first, outputs, report)
    perturb(0)


def perturb(byte: int) -> bool:
    """Have the C library fill memory, or with 0 no longer do so; false where it cannot."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_PERTURB, byte))


def tell(kind: str, first: list[torch.Tensor], outputs: list[torch.Tensor], report: Report) -> None:
    """Whether the outputs of this run are those of the first one, but for rounding."""
    pairs = [compare(want, got, (RELATIVE, RELATIVE * size(want))) for want, got in zip(first, outputs)]
    report.event("repeated", run=kind, equal=all(pair["equal"] for pair in pairs), outputs=pairs)


def size(tensor: torch.Tensor) -> float:
    """The largest finite magnitude; 0 for whole numbers, which are to be equal."""
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0
