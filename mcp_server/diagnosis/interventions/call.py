"""Interventions on how the call is made: constants before it, repeats, stack, operators, environment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options

Step = Mapping[str, object]
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
    """The call in a thread with more stack than any call needs."""
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


def compiled_values(steps: Sequence[Step]) -> Intervention:
    """The captured call without the updates of constants before it."""
    return Intervention(
        key="constant:compiled",
        kind=Kind.CONSTANT,
        what="the call with the values that the package was compiled with, without the updates",
        options=Options(steps=tuple(step for step in steps if step["do"] != "constants")),
        before_code="loader.update_constant_buffer(...)",
        after_code="# without this update",
    )


def cast_in_update(names: Mapping[str, str]) -> Intervention:
    """The updates with these constants cast to the dtype that the package was compiled for."""
    first, dtype = next(iter(names.items()))
    return Intervention(
        key=f"constant:cast:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what=f"the update with {', '.join(f'{name} as {dtype}' for name, dtype in names.items())}",
        options=Options(cast=dict(names)),
        before_code=f'"{first}": {first}',
        after_code=f'"{first}": {first}.to(torch.{dtype})',
    )


def constant_own_memory(names: Sequence[str]) -> Intervention:
    """The updates with these constants in memory of their own: no views of what changes later."""
    return Intervention(
        key=f"constant:own-memory:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what="the call after those constants were given as copies of their own",
        options=Options(copied=tuple(names)),
    )


def given_values(file: Path) -> Intervention:
    """The call after an update with the constants of a file (`{name: tensor}`, of torch.save)."""
    step: Step = {"do": "constants", "file": str(file), "how": "load_constants", "arguments": [False, False]}
    return Intervention(
        key=f"constant:file:{file}",
        kind=Kind.CONSTANT,
        what=f"the call with the constants of {file.name}",
        options=Options(updates=(step,)),
        before_code="loader(...)",
        after_code=f'loader.load_constants(torch.load("{file}"), check_full_update=False)',
        spelling=("--constants", str(file)),
    )
