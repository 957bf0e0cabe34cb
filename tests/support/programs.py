"""Packages read as PyTorch, run in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from mcp_server.package.launches import shim_operator
from mcp_server.package.pytorch.program import PytorchProgram
from mcp_server.package.view import PackageView
from mcp_server.worker.decompiled import overload_of, schema_of


def schemas_of(view: PackageView) -> Mapping[str, Any]:
    """The operators that a package calls, as the installed torch declares them."""
    shims = {shim_operator(each.callee) for each in view.wrapper.launches if each.kind != "cpp"}
    return {shim: schema_of(shim, *found) for shim in shims if (found := overload_of(shim)) is not None}


def run_program(program: PytorchProgram, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a program without weights."""
    namespace: dict[str, Any] = {}
    exec(compile(program.text, "model.py", "exec"), namespace)
    outputs: Sequence[torch.Tensor] = namespace["Model"]()(*(each.clone() for each in given))
    return list(outputs)


def assert_program_agrees(
    program: PytorchProgram, function: Callable[..., Any], given: Sequence[torch.Tensor]
) -> None:
    """Assert that the program gives the results of a function in eager mode."""
    want = [
        each
        for each in tree_leaves(function(*(each.clone() for each in given)))
        if isinstance(each, torch.Tensor)
    ]
    try:
        got = run_program(program, given)
        for first, second in zip(got, want, strict=True):
            close = (
                {"rtol": 2e-2, "atol": 2e-2} if first.element_size() == 2 else {"rtol": 1e-4, "atol": 1e-4}
            )
            torch.testing.assert_close(first, second, equal_nan=True, check_stride=False, **close)
    except Exception as error:
        raise AssertionError(f"{error}\n{program.text}") from error
