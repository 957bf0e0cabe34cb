"""Loading a package: the raw loader first, the public function when it fails."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from .failures import Refused
from .lease import for_cuda, take
from .report import Report
from .weight_files import load_weight_files


def load(request: dict[str, Any], report: Report, *, weights: bool = True) -> Any:
    """The `AOTIModelPackageLoader` of `request["package"]`.

    The raw loader neither probes the CPU's ISA (tens of seconds on some machines) nor hides the first error
    behind a second attempt, as `load_package` does (torch/_inductor/package/package.py, 2.8-2.15). Neither
    brings in weights that the package keeps beside its .so, and calling such a model is a segmentation fault:
    with `weights` they are loaded here.
    """
    package = str(request["package"])
    if not os.path.exists(package):
        raise Refused("no such package", package)
    if for_cuda(package):
        take()
    start = time.monotonic()
    loader = _either(request, report)
    report.event("loaded", seconds=time.monotonic() - start, constants=len(loader.get_constant_fqns()))
    if weights:
        load_weight_files(loader, package, str(request.get("model_name", "model")), report)
    return loader


def _either(request: dict[str, Any], report: Report) -> Any:
    try:
        return _raw(request, report)
    except RuntimeError as error:
        report.event("load_failed", text=str(error)[:4000], type=type(error).__name__)
        return _public(request, report)


def _raw(request: dict[str, Any], report: Report) -> Any:
    report.event("loading", package=request["package"], loader="AOTIModelPackageLoader")
    return torch._C._aoti.AOTIModelPackageLoader(
        str(request["package"]),
        str(request.get("model_name", "model")),
        bool(request.get("run_single_threaded", False)),
        int(request.get("num_runners", 1)),
        int(request.get("device_index", -1)),
    )


def _public(request: dict[str, Any], report: Report) -> Any:
    from torch._inductor.package import load_package

    report.event("loading", package=request["package"], loader="load_package")
    return load_package(
        str(request["package"]),
        model_name=str(request.get("model_name", "model")),
        run_single_threaded=bool(request.get("run_single_threaded", False)),
        num_runners=int(request.get("num_runners", 1)),
        device_index=int(request.get("device_index", -1)),
    ).loader
