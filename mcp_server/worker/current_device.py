"""The CUDA device on which a thread is: a load or a kernel of the program's own that names none uses it."""

from __future__ import annotations

from typing import Optional

import torch


def current_device() -> Optional[int]:
    """Its index; None before CUDA is used, and after a fault that it does not survive."""
    try:
        return torch.cuda.current_device() if torch.cuda.is_initialized() else None
    except RuntimeError:
        return None


def go_to(device: Optional[int]) -> None:
    """Make it the current one; without CUDA in use that is the first already."""
    if device is not None and (device or torch.cuda.is_initialized()):
        torch.cuda.set_device(device)
