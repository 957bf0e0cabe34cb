"""Packages to read: recorded ones, and some whose index has a known origin. Runs decompiled programs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from mcp_server.package.pytorch.program import PytorchProgram
from mcp_server.package.view import PackageView, view_package
from tests.conftest import CACHE, compiled_once
from tests.package.archives import write
from tests.recorded import RECORDINGS


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
    leaves = tree_leaves(function(*(each.clone() for each in given)))
    want = [each for each in leaves if isinstance(each, torch.Tensor)]
    try:
        got = run_program(program, given)
        for first, second in zip(got, want, strict=True):
            most = 2e-2 if first.element_size() == 2 else 1e-4
            close = {"rtol": most, "atol": most}
            torch.testing.assert_close(first, second, equal_nan=True, check_stride=False, **close)
    except Exception as error:
        raise AssertionError(f"{error}\n{program.text}") from error


def build(name: str) -> Path:
    """The package of a model of `tests.zoo.origins`."""
    return compiled_once(CACHE / f"{name}.pt2", "tests.zoo.origins", name)


WRAPPERS = RECORDINGS / "wrappers"


def recorded(name: str, folder: Path, changes: Mapping[str, str] = {}) -> PackageView:
    """Write a package with a recorded wrapper, with `changes` to its text, and without a library."""
    text = (WRAPPERS / f"{name}.torch-2.11-cuda.cpp").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    members = {
        f"{name}/archive_format": b"pt2",
        f"{name}/data/aotinductor/model/abc.wrapper.cpp": text.encode(),
        f"{name}/data/aotinductor/model/abc.wrapper_metadata.json": b'{"AOTI_DEVICE_KEY": "cuda"}',
    }
    return view_package(write(folder / f"{name}.pt2", members))
