"""An exported program taken from the script that compiles it, where torch cannot save it or read it back.

Some higher-order operators (flex_attention), sparse weights and a user's Triton kernels are such (2.13).
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any, Callable

from .failures import Refused
from .report import Report

COMPILERS = ("aoti_compile_and_package", "aot_compile")


class _Taken(BaseException):
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
                raise _Taken(program)
            self.count += 1
            self.inside = True
            try:
                return function(program, *args, **kwargs)
            finally:
                self.inside = False

        return watched


def take(asked: dict[str, Any], report: Report) -> Any:
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
    except _Taken as taken:
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
