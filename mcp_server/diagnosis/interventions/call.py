"""Interventions on how the call is made: threads, history, operators, compile, environment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options

Step = Mapping[str, object]
LARGE_STACK = 64 << 20  # bytes


def without_earlier_calls(steps: Sequence[Step]) -> Intervention:
    """The captured call alone: no call of the same load before it."""
    last = len(steps) - 1
    kept = tuple(step for place, step in enumerate(steps) if place == last or step["do"] != "call")
    return Intervention(
        key="call:alone",
        kind=Kind.CALL,
        what="the call without the calls before it",
        options=Options(steps=kept),
        before_code="model(*earlier); model(*args)",
        after_code="model(*args)",
    )


def twice() -> Intervention:
    """The call made twice on the same tensors: inputs that it changes in place are changed again."""
    return Intervention(
        key="call:twice",
        kind=Kind.CALL,
        what="the call made twice on the same tensors",
        options=Options(twice=True),
    )


def large_stack(size: int = LARGE_STACK) -> Intervention:
    """The call in a thread with more stack."""
    return Intervention(
        key="call:stack",
        kind=Kind.CALL,
        what=f"the call on a stack of {size} bytes",
        options=Options(stack_bytes=size),
        before_code="threading.Thread(target=call).start()",
        after_code=f"threading.stack_size({size})  # before threading.Thread(target=call).start()",
        spelling=("--stack-bytes", str(size)),
    )


def runners(count: int) -> Intervention:
    """The package loaded with more runners, so that threads do not wait for, or share, one."""
    return Intervention(
        key=f"call:runners:{count}",
        kind=Kind.CALL,
        what=f"the call of a package loaded with {count} runners",
        options=Options(num_runners=count, run_single_threaded=False),
        before_code="load_package(path)",
        after_code=f"load_package(path, num_runners={count})",
    )


ONE_THREAD = {"OMP_NUM_THREADS": "1"}
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}


def with_variables(env: Mapping[str, str], what: str = "") -> Intervention:
    """The call with environment variables set."""
    settings = [f"{name}={value}" for name, value in env.items()]
    return Intervention(
        key=f"environment:{','.join(settings)}",
        kind=Kind.ENVIRONMENT,
        what=what or f"the call with {' '.join(settings)}",
        options=Options(env=dict(env)),
        after_code="export " + shlex.join(settings),
        spelling=tuple(word for setting in settings for word in ("--set-env", setting)),
    )


def one_thread() -> Intervention:
    """Kernels on the CPU that do not split their work."""
    return with_variables(ONE_THREAD, "the call with one thread for its kernels")


def blocking_launches() -> Intervention:
    """Launches on the GPU that wait for their end: no two of them overlap."""
    return with_variables(BLOCKING, "the call with launches that wait for their end")


def recompiled(package: Path, option: str, value: str) -> Intervention:
    """The call of `package`, compiled from the same program with one option of Inductor changed."""
    return Intervention(
        key=f"compile:{option}={value}",
        kind=Kind.COMPILE,
        what=f"the call of the program compiled with {option}={value}",
        options=Options(package=package),
        before_code="aoti_compile_and_package(program)",
        after_code=f'aoti_compile_and_package(program, inductor_configs={{"{option}": {value}}})',
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
        spelling=("--operators", "repair"),
    )
