"""The calls that can be made: `run` from inputs, `replay` of a captured one, `repeat` in fresh loads."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import torch

from .calling import call, report_inputs, save, watching
from .compare import compare, compare_all, compare_frame_tensors, compare_returned
from .compare_launches import Bench, Marks
from .imports import import_all
from .inputs import Inputs, apply, arrange, flatten, load_file, read, reporting_changes
from .judged import Judge
from .lease import take
from .loading import load, update_package
from .process import go_to, limited, on_stack
from .report import Report


def operate_run(request: dict[str, Any], report: Report, loaded: Callable[[], None] = lambda: None) -> None:
    """Call `request["package"]` `request["calls"]` times (default 1), with fresh inputs each time.

    Fresh, because a package may change its inputs in place. With no inputs the package is only loaded.
    `changes` alter the inputs before each call (see `transforms`); `operators` (`watch` or `repair`) acts on
    custom operators (see `operators`). `tell_changes` are places of inputs (see `changed_inputs`). `loaded`
    is called before the first one. `expect` and `check` say what the outputs are to be (see `judged`).
    """
    judge = Judge(request)
    import_all(list(request.get("extra_imports", ())), report)
    loader = load(request, report)
    loaded()
    if request.get("inputs") is None:
        return
    in_spec = loader.get_call_spec()[0]
    result: Any = None
    for index in range(int(request.get("calls", 1))):
        report.event("reading_inputs")
        flat = apply(flatten(read(request), in_spec), list(request.get("changes", ())))
        if index == 0:
            report_inputs(flat, report)
        with watching(request, report), reporting_changes(request.get("tell_changes", {}), flat, report):
            result = call(lambda flat=flat: loader.run(flat), index, report)  # type: ignore[misc]
    judge.judge(result, report)
    if request.get("save_outputs"):
        save(result, str(request["save_outputs"]), report)


def operate_replay(request: dict[str, Any], report: Report) -> None:
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
        compare_frame_tensors(load_file(str(request["held"])), result, report)
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
    report_inputs(flat, report)
    with limited(step.get("headroom")), reporting_changes(step["tell_changes"], flat, report):
        for _ in range(times):
            result = on_stack(step.get("stack"), lambda: call(lambda: loader.run(flat), index, report))
        return result


def _in_spec(loader: Any) -> str:
    return str(loader.get_call_spec()[0])


# glibc fills what malloc gives out with the complement of this byte, what free takes back with the byte
# itself (malloc.c, alloc_perturb and free_perturb). 0x7f7f7f7f is 3.4e38 as float32, 0x3f3f3f3f is 0.75.
M_PERTURB = -6
FILLS = {"first": 0x80, "second": 0x80, "filled": 0xC0}

# Sums in another order, as several threads make them, are no other result.
RELATIVE = 1e-3


def operate_repeat(request: dict[str, Any], report: Report) -> None:
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
