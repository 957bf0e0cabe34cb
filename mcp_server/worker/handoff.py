"""A package that is still being rebuilt when the worker starts.

Importing torch and starting the GPU take about as long as the rebuild, so they are done meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

import torch

from .imports import import_all
from .report import Report

POLL_S = 0.01


def received(request: "dict[str, Any]", report: Report) -> "dict[str, Any]":
    """The request with the package that the file `request["handoff"]` names, once it is there.

    `probes` tells whether it has launch probes: the rebuild may have failed. What else the call needs is
    imported first, so `extra_imports` comes back empty. `warm` names a device to start: "cuda" or nothing.
    """
    import_all(list(request.get("extra_imports", ())), report)
    if request.get("warm") == "cuda":
        with contextlib.suppress(RuntimeError):  # the load says it better
            torch.cuda.synchronize()
    report.event("waiting_for_package")
    given = _wait(str(request["handoff"]))
    report.event("package_given", **given)
    return {**request, **given, "extra_imports": ()}


def _wait(path: str) -> "dict[str, Any]":
    """The file is renamed into place when it is whole; who started this process ends it when none comes."""
    while not os.path.exists(path):
        time.sleep(POLL_S)
    with open(path, encoding="utf-8") as file:
        found: "dict[str, Any]" = json.load(file)
    return found
