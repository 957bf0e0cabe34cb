"""Exported programs: read, and given their arguments."""

from __future__ import annotations

import zipfile
from typing import Any

import torch
from torch.utils import _pytree

from .failures import Refused
from .inputs import Inputs, read
from .report import Report
from .taken import take

# Members that torch.export.save writes: from 2.8 on, and before.
MARKS = ("models/", "serialized_exported_program.json")


def load_exported(request: dict[str, Any], report: Report) -> Any:
    """The `ExportedProgram` of `request["exported"]`; raises `Refused` for a file of another kind.

    With `made_by` (see `taken`) the script's own, where no file gives it back.
    """
    made_by = request.get("made_by")
    if request.get("exported") is None and made_by:
        return take(made_by, report)
    try:
        return _read(str(request["exported"]), report)
    except Exception as error:
        if not made_by:
            raise
        report.event("not_loaded", text=str(error)[:500])
        return take(made_by, report)


def _read(path: str, report: Report) -> Any:
    names = _members(path)
    if not any(mark in name for name in names for mark in MARKS):
        packaged = any("data/aotinductor/" in name for name in names)
        kind = "an AOTInductor package" if packaged else "another kind of archive"
        raise Refused("this is {}, not an exported program".format(kind), path, "a file of torch.export.save")
    report.event("loading_exported", exported=path)
    program = torch.export.load(path)
    report.event("loaded_exported", ranges={str(k): str(v) for k, v in program.range_constraints.items()})
    return program


def _members(path: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(
            "the exported program cannot be read: {}".format(error), path, "a file of torch.export.save"
        ) from None


def arguments(program: Any, request: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) as asked; the program's own example inputs when none are."""
    if request.get("inputs") is None:
        args, kwargs = program.example_inputs
        return tuple(args), dict(kwargs)
    inputs = read(request)
    if inputs.flat:
        return _unflatten(program, inputs)
    if inputs.mapping and set(inputs.args[0]) == _keyword_names(program):
        return (), dict(inputs.args[0])
    return inputs.args, inputs.kwargs


def _keyword_names(program: Any) -> set[str]:
    _, kwargs = _pytree.tree_unflatten([0] * program.call_spec.in_spec.num_leaves, program.call_spec.in_spec)
    return set(kwargs)


def _unflatten(program: Any, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Captured leaves without a tree, put into the tree that the program was exported with."""
    spec = program.call_spec.in_spec
    if spec.num_leaves != len(inputs.args):
        raise Refused(
            "the captured leaves do not fill the program's inputs", len(inputs.args), str(spec.num_leaves)
        )
    args, kwargs = _pytree.tree_unflatten(list(inputs.args), spec)
    return tuple(args), dict(kwargs)
