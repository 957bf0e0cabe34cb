"""On which of several CUDA devices a package is loaded, where nobody said."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.model import PackageWorkload
from mcp_server.steps import leases


def to_be_placed(case: Case) -> bool:
    """Whether the inputs of a package for CUDA decide that: on a machine of one GPU there is no choice."""
    workload = case.workload
    unsaid = isinstance(workload, PackageWorkload) and workload.device_index < 0
    return unsaid and case.device == "cuda" and leases.SECOND_GPU.exists()


def place(case: Case) -> None:
    """Load it where all its inputs are: what was saved on a card comes from calls on that card.

    Inputs on several cards leave it on the first one.
    """
    tensors = case.given.tensors if case.given is not None else ()
    indices = {tensor.device_index for tensor in tensors if tensor.device_type == "cuda"}
    index = indices.pop() if len(indices) == 1 else None
    if not index or case.call is None or not to_be_placed(case):
        return
    case.call.request["device_index"] = index
    case.notes.append(
        f"no device_index was given: the package is loaded on cuda:{index}, where its inputs are"
    )
