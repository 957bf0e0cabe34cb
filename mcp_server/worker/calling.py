"""One call of a package, reported before and after, and the state of the device around it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Union

import torch

from .lease import take
from .report import Report
from .tensors import layout, leaves, outputs

if TYPE_CHECKING:
    from .protocol import ExportedRequest, RunRequest


def synchronize() -> None:
    """Wait for the device, so that a fault belongs to this call and not to the next one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def capturing() -> bool:
    """Whether a CUDA graph is being captured: its kernels have not run, and a copy would break it."""
    try:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # an error of an earlier kernel, which every call meets
        return False


def take_if_used() -> None:
    """Lease the GPU for launches that are about to be made, if this process has anything on it."""
    if torch.cuda.is_initialized():
        take()


def idle(patience_s: float = 2.0) -> bool:
    """Whether the current stream soon has nothing left to do; who asks it for values waits for that."""
    if not torch.cuda.is_initialized():
        return True
    limit = time.monotonic() + patience_s
    try:
        while not torch.cuda.current_stream().query():
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
    except RuntimeError:  # an error of an earlier kernel
        return False
    return True


def call(function: Callable[[], Any], index: int, report: Report) -> Any:
    """Events `calling` and `called` (seconds up to the device's end of work, facts of each output)."""
    take_if_used()
    report.event("calling", call=index)
    start = time.monotonic()
    with torch.no_grad():
        result = function()
    synchronize()
    seconds = time.monotonic() - start
    report.event("called", call=index, seconds=seconds, outputs=outputs(result))
    return result


def watching(request: Union[RunRequest, ExportedRequest], report: Report) -> ContextManager[Any]:
    """A context for calls in which custom operators are watched or repaired, as the request asks."""
    if not request.get("operators"):
        return contextlib.nullcontext()
    from .interpret import Operators  # loads much of torch that a plain call does not need

    return Operators(report, repair=request["operators"] == "repair")


def report_inputs(tree: Any, report: Report) -> None:
    """Event `given`: the layout of every leaf of a call."""
    found = [
        {"path": path, **(layout(leaf) if isinstance(leaf, torch.Tensor) else {"value": repr(leaf)[:200]})}
        for path, leaf in leaves(tree)
    ]
    report.event("given", leaves=found)
