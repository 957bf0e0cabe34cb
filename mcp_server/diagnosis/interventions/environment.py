"""Interventions on the surroundings of the process: each needs a process of its own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options

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
