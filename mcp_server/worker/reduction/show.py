"""What reproductions do with their model: the parts below the lines are copied into them."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import Any

import torch

# ---- copied into every reproduction ----

# Relative and absolute tolerance of an output, by its dtype; whole numbers must be equal.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (3e-2, 3e-2),
}
NO_FAULT, NOT_FINITE, DEPARTS, NOT_EXPORTED = 0, 3, 4, 5


def seeded(shape: Any, stride: Any, dtype: torch.dtype, low: float, high: float, seed: int) -> torch.Tensor:
    """A tensor of uniform values in [low, high], the same for the same seed."""
    drawn = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if not dtype.is_floating_point:
        drawn = (drawn * (high - low + 1) + low).floor().clamp(max=high)
    else:
        drawn = drawn * (high - low) + low
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(drawn)


def show(model: Any, arguments: Any, dynamic_shapes: Any, configs: Any) -> int:
    """Export, compile, load and call; then compare the outputs with eager. The exit status."""
    phase("exporting")
    try:
        program = torch.export.export(model, arguments, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception:
        traceback.print_exc()
        return NOT_EXPORTED
    phase("compiling")
    path = os.path.join(tempfile.mkdtemp(), "model.pt2")
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=path, inductor_configs=configs
        )
    phase("loading")
    loader = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)
    phase("calling")
    outputs = loader.run([argument.clone() for argument in arguments])
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    phase("comparing")
    bad = [not_finite(place, output) for place, output in enumerate(outputs)]
    with torch.no_grad():
        expected = model(*arguments)
    away = [departs(place, got, want) for place, (got, want) in enumerate(zip(outputs, expected))]
    return NOT_FINITE if any(bad) else DEPARTS if any(away) else NO_FAULT


def phase(name: str) -> None:
    print("phase:", name, flush=True)


def not_finite(place: int, output: torch.Tensor) -> bool:
    """Print how many values of an output are not finite; minus infinity alone is what masks are made of."""
    if not (output.is_floating_point() or output.is_complex()):
        return False
    wide = output.float() if output.element_size() == 1 else output
    nan = int(torch.isnan(wide).sum())
    inf = int(torch.isinf(wide).sum())
    if nan or inf:
        print("not finite: output", place, "holds", nan, "nan and", inf, "inf of", output.numel(), flush=True)
    return bool(nan) or bool((wide == float("inf")).any())


def departs(place: int, got: torch.Tensor, want: torch.Tensor) -> bool:
    """Print where the package's output is not what eager gives."""
    if got.shape != want.shape or got.dtype != want.dtype:
        print("departs: output", place, "is", got.dtype, tuple(got.shape), flush=True)
        print("         eager gives", want.dtype, tuple(want.shape), flush=True)
        return True
    exact = torch.complex128 if want.is_complex() else torch.float64
    got, want, (rtol, atol) = got.cpu(), want.cpu(), TOLERANCES.get(want.dtype, (0.0, 0.0))
    bad = ~torch.isclose(got.to(exact), want.to(exact), rtol=rtol, atol=atol, equal_nan=True)
    if bool(bad.any()):
        at = tuple(int(i) for i in bad.nonzero()[0])
        print("departs: output", place, "in", int(bad.sum()), "of", got.numel(), "elements", flush=True)
        print("         first at", list(at), "package", got[at].item(), "eager", want[at].item(), flush=True)
    return bool(bad.any())


def end(status: int) -> None:
    print("exit status", status, flush=True)
    sys.exit(status)


# ---- copied where an operator is not torch's ----


def stand_in(name: str, schema: str, tags: Any, results: Any) -> None:
    """Define an operator that returns memory of fixed layouts: it stands in for one that is not torch's."""

    def impl(*_args: Any, **_kwargs: Any) -> Any:
        return results()

    torch.library.define(name, schema, tags=tags)
    torch.library.impl(name, "default")(impl)
    torch.library.register_fake(name)(impl)
