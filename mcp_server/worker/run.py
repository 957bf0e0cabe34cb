"""Operations that call a package: `run` from inputs, `replay` of a captured call, `repeat` in fresh loads."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import torch

from .calling import call, report_inputs, save, watching
from .compare import compare, compare_all, compare_frame_tensors, compare_returned
from .compare_launches import Bench, Marks
from .imports import import_all
from .inputs import apply, arrange, flatten, load_file, read, reporting_changes
from .judged import Judge
from .lease import take
from .loading import load, update_package
from .process import go_to, limited, on_stack
from .report import Report


def operate_run(request: dict[str, Any], report: Report, loaded: Callable[[], None] = lambda: None) -> None:
    """Call `request["package"]` `request["calls"]` times (default 1), with fresh inputs each time.

    Fresh, because a package may mutate its inputs. Without inputs the package is only loaded.
    `changes` alter the inputs before each call (`inputs.CHANGES`). `operators` (`watch` or `repair`) acts on
    custom operators (`interpret.Operators`). `tell_changes` asks for event `changed_inputs`. `loaded` is
    called after the load. `expect` and `check` say what the
    outputs are to be (see `judged`).
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

    A step is {"do": "constants", "file", "how", "arguments"} or {"do": "call", "file", "threads"}. A call may
    have "headroom" (bytes that it may map) and "stack" (bytes of its thread's stack). Other keys:
    - `changes`: change the inputs of the last call (`inputs.CHANGES`); `twice`: repeat it on the same
      tensors; `stack_bytes`: replaces its "stack"; `tell_changes`: asks for event `changed_inputs` of it;
    - `save_outputs`: file for the outputs of the last call;
    - `actual`: file of a failed comparison; both of its sides are compared with the outputs;
    - `held`: file of the program's local tensors when its own check failed, compared with the outputs;
    - `returned`: file of the outputs that the call had in the program, compared with the outputs;
    - `current_device`: CUDA device to make current;
    - `cast`: {constant: dtype} to convert before an update; `copied`: constants to copy before an update.
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
        saved = load_file(str(request["held"])) if request.get("held") else {}
        compare_returned(load_file(str(request["returned"])), saved, result, report)
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
    if step.get("threads"):  # the number of threads decides how kernels split their work
        torch.set_num_threads(int(step["threads"]))
    report.event("reading_inputs", file=step["file"])
    inputs = arrange(load_file(str(step["file"])), str(step["file"]))
    flat = apply(flatten(inputs, str(loader.get_call_spec()[0])), changes)
    report_inputs(flat, report)
    with limited(step.get("headroom")), reporting_changes(step["tell_changes"], flat, report):
        for _ in range(times):
            result = on_stack(step.get("stack"), lambda: call(lambda: loader.run(flat), index, report))
        return result


# glibc fills what malloc gives out with the complement of this byte, what free takes back with the byte
# itself (malloc.c, alloc_perturb and free_perturb). 0x7f7f7f7f is 3.4e38 as float32, 0x3f3f3f3f is 0.75.
M_PERTURB = -6
FILLS = {"first": 0x80, "second": 0x80, "filled": 0xC0}

# Threads may sum in another order, which is no different result.
RELATIVE = 1e-3


def operate_repeat(request: dict[str, Any], report: Report) -> None:
    """Event `repeated` (`run`, `equal`, `outputs`) for the second and the last call, compared with the first.

    Request: what `run` takes, and `probes`: whether the package is instrumented; event `rerun` then has the
    checksum of each tensor that a launch wrote. Random numbers differ in the second call; the contents of new
    memory differ in the last one. If the C library cannot fill memory (event `unfilled`), there is no last
    call.
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
            report_repeat(kind, first, outputs, report)
    perturb(0)


def perturb(byte: int) -> bool:
    """Make the C library fill memory with `byte`, or stop with 0. Returns False if it cannot."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_PERTURB, byte))


def report_repeat(kind: str, first: list[torch.Tensor], outputs: list[torch.Tensor], report: Report) -> None:
    """Event `repeated`: whether the outputs equal those of the first run, up to rounding."""
    pairs = [compare(want, got, (RELATIVE, RELATIVE * size(want))) for want, got in zip(first, outputs)]
    report.event("repeated", run=kind, equal=all(pair["equal"] for pair in pairs), outputs=pairs)


def size(tensor: torch.Tensor) -> float:
    """The largest finite magnitude; 0 for integers, which must be equal."""
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0
