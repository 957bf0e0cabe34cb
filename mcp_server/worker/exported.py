"""Exported programs: read, recaptured from the script that makes them, and compiled.

An exported program taken from the script that compiles it, where torch cannot save it or read it back.

Some higher-order operators (flex_attention), sparse weights and a user's Triton kernels are such (2.13).
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import zipfile
from typing import Any, Callable

import torch
from torch.utils import _pytree

from .encode import decode
from .imports import import_all
from .inputs import Inputs, read
from .report import Refused, Report

COMPILERS = ("aoti_compile_and_package", "aot_compile")


class _ProgramFound(BaseException):
    """Ends the script; no handler for its own errors is to stop that."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self.program = program


class _Compiles:
    """Counts compiles; those before number `wanted` are made, one inside another is part of it."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.count = 0
        self.inside = False

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(program: Any, *args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return function(program, *args, **kwargs)
            if self.count == self.wanted:
                raise _ProgramFound(program)
            self.count += 1
            self.inside = True
            try:
                return function(program, *args, **kwargs)
            finally:
                self.inside = False

        return watched


def recapture(asked: dict[str, Any], report: Report) -> Any:
    """The program that `asked["script"]` (with `args`) gives to compile number `compile`, counted from 0.

    The script runs up to there in this process, where torch is imported already. Raises `Refused` when it
    ends before.
    """
    import torch._inductor
    import torch.export

    report.event("taking", script=asked["script"], compile=asked["compile"])
    compiles = _Compiles(int(asked["compile"]))
    kept = {name: getattr(torch._inductor, name) for name in COMPILERS if hasattr(torch._inductor, name)}
    try:
        for name, function in kept.items():
            setattr(torch._inductor, name, compiles.watch(function))
        _run(str(asked["script"]), [str(word) for word in asked.get("args", ())])
    except _ProgramFound as taken:
        if isinstance(taken.program, torch.export.ExportedProgram):
            return taken.program
    except SystemExit:
        pass
    finally:
        for name, function in kept.items():
            setattr(torch._inductor, name, function)
    raise Refused("the script did not reach the compile of its program again", asked["script"])


def _run(script: str, args: list[str]) -> None:
    """As `python script args` would; what it registers stays."""
    sys.argv[:] = [script, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


# Members that torch.export.save writes: from 2.8 on, and before.
MARKS = ("models/", "serialized_exported_program.json")


def load_exported(request: dict[str, Any], report: Report) -> Any:
    """The `ExportedProgram` of `request["exported"]`; raises `Refused` for a file of another kind.

    With `made_by` (see `taken`) the script's own, where no file gives it back.
    """
    made_by = request.get("made_by")
    if request.get("exported") is None and made_by:
        return recapture(made_by, report)
    try:
        return _read(str(request["exported"]), report)
    except Exception as error:
        if not made_by:
            raise
        report.event("not_loaded", text=str(error)[:500])
        return recapture(made_by, report)


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
