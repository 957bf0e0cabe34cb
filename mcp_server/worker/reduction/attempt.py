"""`attempt`: an exported program compiled, loaded, called, held against eager, and recorded node by node."""

from __future__ import annotations

from typing import Any

import torch

from ..calling import call
from ..exported import arguments, load_exported
from ..imports import import_all
from ..loading import load
from ..options import decode
from ..report import Report
from .program import flatten_program
from .record import Recorder
from .show import departs, not_finite


def operate(request: dict[str, Any], report: Report) -> None:
    """Events `compiling`, `loading`, `calling`, `judged` (`not_finite`, `nan`, `departs`), `recorded`.

    `values` is the directory for the nodes' values, `package_path` the place of the package. A failure ends
    the work where it happens; the operation `record` then does the rest in a process that is not damaged.
    """
    import_all(list(request.get("extra_imports", ())), report)
    exported = load_exported(request, report)
    report.event("reading_inputs")
    args, kwargs = arguments(exported, request)
    program = flatten_program(exported, args, kwargs)
    report.event("importing_inductor")
    from torch._inductor import aoti_compile_and_package

    configs = decode(request.get("inductor_configs") or {})
    report.event("compiling")
    with torch.no_grad():
        package = aoti_compile_and_package(
            exported, package_path=str(request["package_path"]), inductor_configs=configs
        )
    loader = load({"package": package}, report)
    given = [leaf for leaf in program.inputs if isinstance(leaf, torch.Tensor)]
    outputs = call(lambda: loader.run([leaf.clone() for leaf in given]), 0, report)
    bad = [not_finite(place, output) for place, output in enumerate(outputs)]
    nan = any(o.is_floating_point() and bool(torch.isnan(o.float()).any()) for o in outputs)
    report.event("evaluating")
    expected = Recorder(program, str(request["values"]), report).record()[-len(outputs) :]
    wanted = [value for value in expected if isinstance(value, torch.Tensor)]
    away = [departs(place, *pair) for place, pair in enumerate(zip(outputs, wanted))]
    report.event("judged", not_finite=any(bad), nan=nan, departs=any(away))
    report.event("recorded", units=program.units)
