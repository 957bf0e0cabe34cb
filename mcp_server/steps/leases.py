"""Which GPUs a child of a step leases, so that two jobs never share one unless asked to."""

from __future__ import annotations

import os
from pathlib import Path

SHARE_VARIABLE = "AOTI_DEBUG_SHARE_GPUS"
SECOND_GPU = Path("/dev/nvidia1")
DEVICES = Path("/dev")


def gpus_of(device_type: str | None, device_index: int = -1) -> tuple[int, ...] | None:
    """The GPU of a CUDA package; None for a CPU one, or when `AOTI_DEBUG_SHARE_GPUS=1` lets jobs share.

    A workload whose device is not known (None) leases the first GPU of a machine that has one, or the one
    with that index. A container may see only its third (/dev/nvidia2).
    """
    if os.environ.get(SHARE_VARIABLE) == "1" or device_type == "cpu":
        return None
    if device_type is None and not any(DEVICES.glob("nvidia[0-9]*")):
        return None
    return (max(device_index, 0),)
