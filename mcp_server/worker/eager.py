"""`eager`: the exported program with its guards, on the same inputs."""

from __future__ import annotations

from typing import Any

from .calling import call, save, tell_inputs
from .exported import arguments, load_exported
from .imports import import_all
from .report import Report


def operate(request: dict[str, Any], report: Report) -> None:
    """Run `ep.module()`, whose guards AOTInductor drops since torch 2.9; `save_outputs` as in `run`."""
    import_all(list(request.get("extra_imports", ())), report)
    result = evaluate(request, report)
    if request.get("save_outputs"):
        save(result, str(request["save_outputs"]), report)


def evaluate(request: dict[str, Any], report: Report) -> Any:
    """The outputs of one eager call."""
    program = load_exported(request, report)
    module = program.module()
    report.event("reading_inputs")
    args, kwargs = arguments(program, request)
    tell_inputs((args, kwargs), report)
    return call(lambda: module(*args, **kwargs), 0, report)
