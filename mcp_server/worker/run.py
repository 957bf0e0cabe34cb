"""`run`: load a package, make or load its inputs, call it."""

from __future__ import annotations

from typing import Any, Callable

from .calling import call, save, tell_inputs, watching
from .changed_inputs import telling
from .imports import import_all
from .inputs import flatten, read
from .loading import load
from .report import Report
from .transforms import apply


def operate(request: dict[str, Any], report: Report, loaded: Callable[[], None] = lambda: None) -> None:
    """Call `request["package"]` `request["calls"]` times (default 1), with fresh inputs each time.

    Fresh, because a package may change its inputs in place. With no inputs the package is only loaded.
    `changes` alter the inputs before each call (see `transforms`); `operators` (`watch` or `repair`) acts on
    custom operators (see `operators`). `tell_changes` are places of inputs (see `changed_inputs`). `loaded`
    is called before the first one.
    """
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
            tell_inputs(flat, report)
        with watching(request, report), telling(request.get("tell_changes", {}), flat, report):
            result = call(lambda flat=flat: loader.run(flat), index, report)  # type: ignore[misc]
    if request.get("save_outputs"):
        save(result, str(request["save_outputs"]), report)
