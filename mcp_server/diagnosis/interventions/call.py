"""Interventions on how the call is made: repeats, stack, environment, operators, constants from a file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options

LARGE_STACK = 1 << 30  # bytes; memory is taken only as far as the stack grows


def twice() -> Intervention:
    """The call made twice on the same tensors: inputs that it changes in place are changed again."""
    return Intervention(
        key="call:twice",
        kind=Kind.CALL,
        what="the call made twice on the same tensors",
        options=Options(twice=True),
    )


def large_stack() -> Intervention:
    """The call in a thread with a stack of `LARGE_STACK` bytes."""
    return Intervention(
        key="call:stack",
        kind=Kind.CALL,
        what=f"the call on a stack of {LARGE_STACK} bytes",
        options=Options(stack_bytes=LARGE_STACK),
    )


def with_variables(env: Mapping[str, str]) -> Intervention:
    """The call with environment variables set, in a process of its own."""
    settings = [f"{name}={value}" for name, value in env.items()]
    return Intervention(
        key=f"environment:{','.join(settings)}",
        kind=Kind.ENVIRONMENT,
        what=f"the call with {' '.join(settings)}",
        options=Options(env=dict(env)),
        after_code="export " + shlex.join(settings),
        spelling=tuple(word for setting in settings for word in ("--set-env", setting)),
    )


def as_promised() -> Intervention:
    """Results of custom operators laid out as their fake functions promise, with room around them."""
    return Intervention(
        key="operator:promised",
        kind=Kind.OPERATOR,
        what="the call with the operators' results laid out as their fake functions promise",
        options=Options(operators="repair"),
        before_code="return result",
        after_code="return result.to(promised.dtype).reshape(promised.shape).contiguous()",
    )


def given_values(file: Path) -> Intervention:
    """The call after an update with the constants of a file (`{name: tensor}`, of torch.save).

    A state_dict has more names than a package, which leaves out what the graph does not read.
    """
    step: dict[str, object] = {
        "do": "constants",
        "file": str(file),
        "how": "load_constants",
        "arguments": [False, False],
        "only_known": True,
    }
    return Intervention(
        key=f"constant:file:{file}",
        kind=Kind.CONSTANT,
        what=f"the call with the constants of {file.name}",
        options=Options(updates=(step,)),
        before_code="loader(...)",
        after_code=f'loader.load_constants(torch.load("{file}"), check_full_update=False)',
        spelling=("--constants", str(file)),
    )
