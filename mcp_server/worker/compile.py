"""`compile`: an exported program to a package, under chosen options."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from .exported import load_exported
from .imports import import_all
from .options import decode
from .report import Report


def operate(request: dict[str, Any], report: Report) -> None:
    """Compile `exported` into `package_path` with `inductor_configs` (names of torch._inductor.config).

    Flags that are environment variables act because the caller set them before this process began.
    Events `compiling` and `compiled` (seconds, package, bytes).
    """
    import_all(list(request.get("extra_imports", ())), report)
    program = load_exported(request, report)
    configs = decode(request.get("inductor_configs") or {})
    report.event("importing_inductor")
    from torch._inductor import aoti_compile_and_package

    report.event("compiling", inductor_configs=configs)
    start = time.monotonic()
    with torch.no_grad():
        package = aoti_compile_and_package(
            program, package_path=str(request["package_path"]), inductor_configs=configs
        )
    seconds = time.monotonic() - start
    report.event("compiled", seconds=seconds, package=package, bytes=os.path.getsize(package))
