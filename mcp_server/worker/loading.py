"""Loading a package: the raw loader first, the public function when it fails."""

from __future__ import annotations

import os
import time
import zipfile
from typing import Any

import torch

from .failures import Refused
from .report import Report


def load(request: dict[str, Any], report: Report) -> Any:
    """The `AOTIModelPackageLoader` of `request["package"]`.

    The raw loader neither probes the CPU's ISA (tens of seconds on some machines) nor hides the first error
    behind a second attempt, as `load_package` does (torch/_inductor/package/package.py, 2.8-2.15). It does
    not bring in weights kept outside the .so: calling such a model would be a segmentation fault.
    """
    package = str(request["package"])
    if not os.path.exists(package):
        raise Refused("no such package", package)
    start = time.monotonic()
    loader = _public(request, report) if _weights_outside(package) else _either(request, report)
    report.event("loaded", seconds=time.monotonic() - start, constants=len(loader.get_constant_fqns()))
    return loader


def _weights_outside(package: str) -> bool:
    """Whether weights are kept as pickles beside the .so (`package_constants_on_disk_format`)."""
    try:
        with zipfile.ZipFile(package) as archive:
            return any(name.endswith("weights_config.json") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


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
