"""Modules and files that register custom ops."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

from .failures import Refused
from .report import Report


def import_all(names: list[str], report: Report) -> None:
    """Import modules, run .py files under a name other than `__main__`, load .so files as op libraries."""
    for name in names:
        report.event("importing", name=name)
        if name.endswith(".so"):
            _load_library(name)
        elif name.endswith(".py"):
            _import_file(name)
        else:
            importlib.import_module(name)


def _load_library(path: str) -> None:
    import torch

    if not os.path.exists(path):
        raise Refused("no such operator library", path)
    torch.ops.load_library(path)


def _import_file(path: str) -> None:
    """Run the file as a module. Its directory comes first on `sys.path`, as Python does for a script."""
    if not os.path.exists(path):
        raise Refused("no such file to import", path)
    path = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(path))
    name = "_aoti_debug_import_" + os.path.basename(path)[:-3]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
