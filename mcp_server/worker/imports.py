"""Modules and files that register custom ops."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType

from .failures import Refused, facts
from .registrations import Taken, registrations
from .report import Report

OPERATORS = "#operators"  # after a file's name: only the operators that it registers


def import_all(names: list[str], report: Report) -> None:
    """Import modules, run .py files under a name other than `__main__`, load .so files as op libraries.

    Of `FILE.py#operators` only the statements run that register operators (see `registrations`); event
    `operators_taken` tells their lines, or why there are none.
    """
    for name in names:
        report.event("importing", name=name)
        if name.endswith(OPERATORS):
            _take_operators(name[: -len(OPERATORS)], report)
        elif name.endswith(".so"):
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


class _Operators(SourceFileLoader):
    """Imports a script as far as it registers operators."""

    def __init__(self, name: str, path: str, taken: Taken) -> None:
        super().__init__(name, path)
        self.taken = taken

    def get_code(self, _fullname: str) -> CodeType:
        return self.taken.code(self.path)


def _take_operators(path: str, report: Report) -> None:
    """What goes wrong here is told and not raised: the call may need none of them."""
    module, path = _module_of(path)
    with open(path, "rb") as file:
        taken = registrations(file.read(), path)
    if taken.refused or not taken.statements:
        report.event("operators_taken", file=path, lines=[], refused=taken.refused)
        return
    try:
        _Operators(module.__name__, path, taken).exec_module(module)
    except Exception as error:
        told = facts(error)
        refused = "{}: {}".format(told["type"], told["text"])[:500]
        report.event("operators_taken", file=path, lines=[], refused=refused)
        return
    report.event("operators_taken", file=path, lines=list(taken.lines), refused="")


def _import_file(path: str) -> None:
    """Run the file as a module."""
    module, path = _module_of(path)
    assert module.__spec__ is not None and module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)


def _module_of(path: str) -> "tuple[ModuleType, str]":
    """A module for a file, and its whole path. Its directory comes first on `sys.path`, as for a script."""
    if not os.path.exists(path):
        raise Refused("no such file to import", path)
    path = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(path))
    name = "_aoti_debug_import_" + os.path.basename(path)[:-3]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    return module, path
