"""What runs in a process of its own: compiles a model, or runs a program and tells how that ended.

`program.py compile FOLDER NAME` reads `model.py` there; the environment decides about provenance.
"""

import contextlib
import importlib.util
import inspect
import multiprocessing
import os
import runpy
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from benchmarks.plant.models import MODELS, Model

WEIGHTS_SEED = 11
ENDED = "ended"
LIMIT_S = 120
PLANTING = threading.Lock()  # torch has one seed for the process
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["torch._inductor", "benchmarks.plant.program"])


def module_at(file: Path) -> Any:
    """The module in `file`, under the name that a program beside it imports."""
    spec = importlib.util.spec_from_file_location("model", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def eager_model(file: Path, device: str) -> Any:
    """The model of `file` with the weights that every build of it has."""
    torch.manual_seed(WEIGHTS_SEED)
    return module_at(file).Model().eval().to(device)


def draw_inputs(model: Model, seed: int, device: str, sizes: dict[str, int] | None = None) -> list[Any]:
    """Good inputs: every value within its bounds, and a true value in every row of a mask."""
    made = torch.Generator().manual_seed(seed)
    chosen = {}
    for name, dimension in model.dimensions.items():
        low, high = dimension.usual
        chosen[name] = int(torch.randint(low, high + 1, (), generator=made))
    chosen.update(sizes or {})
    return [_draw(given, chosen, made).to(device) for given in model.inputs]


def _draw(given: Any, sizes: dict[str, int], made: Any) -> Any:
    shape = tuple(sizes.get(size, size) for size in given.shape)
    if given.kind == "normal":
        return torch.randn(shape, generator=made)
    if given.kind == "uniform":
        return torch.rand(shape, generator=made) * (given.high - given.low) + given.low
    if given.kind in ("index", "count"):
        return torch.randint(int(given.low), int(given.high), shape, generator=made)
    mask = torch.rand(shape, generator=made) > 0.3
    mask[:, : min(6, shape[1])] = True
    return mask


def dynamic_shapes(model: Model) -> tuple[dict[int, Any], ...]:
    """The dynamic dimensions of each input, as `torch.export` wants them."""
    made = {
        name: torch.export.Dim(name, min=dimension.least, max=dimension.most)
        for name, dimension in model.dimensions.items()
    }
    return tuple(
        {place: made[size] for place, size in enumerate(given.shape) if isinstance(size, str)}
        for given in model.inputs
    )


def compile_model(folder: Path, name: str, device: str) -> None:
    """Write the package `model.pt2` and the exported program `exported.pt2` beside the source."""
    model = MODELS[name]
    with torch.no_grad():
        exported = torch.export.export(
            eager_model(folder / "model.py", device),
            tuple(draw_inputs(model, 5, device)),
            dynamic_shapes=dynamic_shapes(model),
        )
    torch.export.save(exported, folder / "exported.pt2")
    torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "model.pt2"))


@dataclass(frozen=True)
class Traced:
    """One operation of an eager call: the line of model.py that asked for it, and what it gave."""

    line: int | None
    not_finite: bool
    nan: bool


class Tracer(TorchFunctionMode):  # type: ignore[misc]
    """Records the output of each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Traced] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.is_floating_point():
            with torch._C.DisableTorchFunction():
                finite, nan = bool(found.isfinite().all()), bool(found.isnan().any())
            self.seen.append(Traced(model_line(), not finite, nan))
        return found


def model_line() -> int | None:
    """The line of model.py nearest to the running operation."""
    frame = inspect.currentframe()
    while frame is not None:
        if Path(frame.f_code.co_filename).name == "model.py":
            return frame.f_lineno
        frame = frame.f_back
    return None


def trace(eager: Any, inputs: list[Any]) -> list[Traced]:
    """The operations of a call, as far as it gets."""
    tracer = Tracer()
    with tracer, contextlib.suppress(RuntimeError, IndexError):
        eager(*[tensor.clone() for tensor in inputs])
    return tracer.seen


def run_program(folder: Path) -> str:
    """How the folder's `program.py` ends in a process of its own: ENDED, the error, a signal, or no end."""
    child = CHILDREN.Process(target=run_here, args=(str(folder),))
    child.start()
    child.join(LIMIT_S)
    if child.is_alive():
        child.kill()
        child.join()
        return "no end"
    if child.exitcode is not None and child.exitcode < 0:
        return f"signal {-child.exitcode}"
    if child.exitcode == 0:
        return ENDED
    lines = [line for line in (folder / "log.txt").read_text(errors="replace").splitlines() if line.strip()]
    raised = [line for line in lines if "Error" in line.split(":")[0]]
    return (raised or lines or [f"status {child.exitcode}"])[-1][:200]


def run_here(folder: str) -> None:
    """The target of `run_program`."""
    log = os.open(f"{folder}/log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    try:
        runpy.run_path(f"{folder}/program.py", run_name="__main__")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    compile_model(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
