"""Requests for the worker, from workloads."""

from __future__ import annotations

from typing import Any

from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload

INPUTS_HELP = (
    "a file written by torch.save, or a list of specs such as {'shape': [8, 64], 'dtype': 'float32'}"
)


def run_request(workload: PackageWorkload) -> dict[str, Any]:
    """The worker's `run` of a package; raises `ProblemError` when there are no inputs."""
    if workload.inputs is None:
        raise ProblemError("running a package needs inputs", allowed=INPUTS_HELP)
    return {
        "package": workload.package,
        "model_name": workload.model_name,
        "device_index": workload.device_index,
        "inputs": workload.inputs,
        "extra_imports": workload.extra_imports,
    }
