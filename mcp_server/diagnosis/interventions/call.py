"""Interventions on how the call is made: its threads, its stack, its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
