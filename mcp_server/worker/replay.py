"""`replay`: a captured load, its constant updates and its calls, in the captured order."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .address_space import limited
from .calling import call, save, tell_inputs, watching
from .changed_inputs import telling
from .compare import compare_all, compare_held, compare_returned
from .current_device import go_to
from .imports import import_all
from .inputs import Inputs, arrange, flatten, load_file
from .lease import take
from .loading import load
from .own_stack import on_stack
from .report import Report
from .transforms import apply
from .updates import update_package


def operate(request: dict[str, Any], report: Report) -> None:
    """Load `package` (or the bare .so `library`) with the captured options, then do each of `steps`.

    A step is {"do": "constants", "file", "how", "arguments"} or {"do": "call", "file", "threads"}, the latter
    maybe with the bytes that it may map, "headroom", and those of its thread's "stack", which `stack_bytes`
    replaces in the last call. Tensors given to `load_constants` stay alive, as a
    user-managed update needs. `changes` alter the inputs of the last call (see `transforms`), `twice` makes
    it once more on the same tensors; `save_outputs` keeps what it returned. `actual` is the file of a failed
    comparison, both sides of which are compared with that, `held` one of what the program held when a check
    of its own failed, `returned` one of what the call gave in the program. `current_device` is the CUDA
    device to be on. `tell_changes` are places of inputs of the last call (see `changed_inputs`). `cast` maps
    names of constants to the dtype that they get before an update, `copied` are names of those that get
    memory of their own.
    """
    import_all(list(request.get("extra_imports", ())), report)
    loader = load_library(request, report) if request.get("library") else load(request, report, weights=False)
    go_to(request.get("current_device"))  # a load that names a device goes there, and stays
    alive: list[Any] = []
    result: Any = None
    steps = list(request.get("steps", ()))
    for index, step in enumerate(steps):
        if step["do"] == "constants":
            cast, copied = dict(request.get("cast", {})), list(request.get("copied", ()))
            alive.append(update_package(loader, step, cast, report, copied))
        else:
            last = index == len(steps) - 1
            changes = list(request.get("changes", ())) if last else []
            times = 2 if last and request.get("twice") else 1
            if last and request.get("stack_bytes"):
                step = {**step, "stack": int(request["stack_bytes"])}
            with watching(request, report):
                asked = dict(request.get("tell_changes", {})) if last else {}
                result = _call(loader, {**step, "tell_changes": asked}, index, report, changes, times)
    if request.get("save_outputs") and result is not None:
        save(result, str(request["save_outputs"]), report)
    if request.get("held") and result is not None:
        compare_held(load_file(str(request["held"])), result, report)
    if request.get("returned") and result is not None:
        held = load_file(str(request["held"])) if request.get("held") else {}
        compare_returned(load_file(str(request["returned"])), held, result, report)
    if request.get("actual") and result is not None:
        sides = load_file(str(request["actual"]))
        compare_all(sides["expected"], result, (None, None), report, "compared_expected")
        compare_all(sides["actual"], result, (None, None), report)


RUNNERS: dict[str, Callable[[str, str], Any]] = {
    "cpu": lambda path, _device: torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1),
    "cuda": lambda path, device: torch._C._aoti.AOTIModelContainerRunnerCuda(path, 1, device),
}


def load_library(request: dict[str, Any], report: Report) -> Any:
    """A runner of a bare .so, as `torch._export.aot_load` makes it."""
    device = str(request.get("device", "cpu"))
    if device != "cpu":
        take()
    report.event("loading", package=request["library"], loader="aot_load")
    runner = RUNNERS[device.split(":")[0]](str(request["library"]), device)
    report.event("loaded", constants=len(runner.get_constant_names_to_original_fqns()))
    return runner


def _call(
    loader: Any, step: dict[str, Any], index: int, report: Report, changes: list[dict[str, Any]], times: int
) -> Any:
    if step.get("threads"):  # kernels that split their work fail in other ways with other numbers
        torch.set_num_threads(int(step["threads"]))
    report.event("reading_inputs", file=step["file"])
    inputs = arrange(load_file(str(step["file"])), str(step["file"]))
    flat = flatten(Inputs(inputs.args, inputs.kwargs, inputs.mapping, inputs.flat), _in_spec(loader))
    flat = apply(flat, changes)
    tell_inputs(flat, report)
    with limited(step.get("headroom")), telling(step["tell_changes"], flat, report):
        for _ in range(times):
            result = on_stack(step.get("stack"), lambda: call(lambda: loader.run(flat), index, report))
        return result


def _in_spec(loader: Any) -> str:
    return str(loader.get_call_spec()[0])
