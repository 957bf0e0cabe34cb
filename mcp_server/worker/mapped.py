"""Whether the memory behind a tensor is still there; the system is asked, since a read could end the process.

It copies what it is given into a pipe, and refuses an address that is not mapped, or that lies behind the end
of a file which was cut. Memory that was freed and is still mapped cannot be told from memory in use.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Sequence

import torch

from .tensors import is_plain


def unmapped(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Positions of the CPU tensors of which the first or the last byte is not mapped."""
    ends = [(place, at) for place, tensor in enumerate(tensors) for at in _ends(tensor)]
    if not ends:
        return []
    try:
        read, write = os.pipe()
    except OSError:
        return []  # no files left: that is the program's own affair
    try:
        return sorted({place for place, at in ends if _refused(at, read, write)})
    finally:
        os.close(read)
        os.close(write)


def _ends(tensor: torch.Tensor) -> tuple[int, ...]:
    """The addresses of its first and last byte; none for what has no plain memory on the host."""
    if not is_plain(tensor) or tensor.device.type != "cpu" or not tensor.numel():
        return ()
    first = tensor.data_ptr()
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (first, first + (steps + 1) * tensor.element_size() - 1) if first else ()


def _refused(address: int, read: int, write: int) -> bool:
    try:
        os.write(write, (ctypes.c_char * 1).from_address(address))
    except OSError as error:
        return error.errno == errno.EFAULT
    os.read(read, 1)
    return False
