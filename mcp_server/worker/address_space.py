"""Limits on the memory that a process may map: what a program had left, and a call with no more than that."""

from __future__ import annotations

import contextlib
import resource
from typing import Iterator, Optional

import torch

ENOUGH_FOR_THREADS = 1 << 20  # elements that torch splits among its threads
# Column of /proc/self/statm that each limit counts: the whole address space; private memory that is written.
_COLUMNS = {"RLIMIT_AS": 0, "RLIMIT_DATA": 5}


def headroom() -> Optional[int]:
    """Bytes that this process may still map; None where nothing limits it."""
    left = _left()
    return min(left.values()) if left else None


def headroom_of() -> str:
    """The limit that leaves the least; "" where there is none."""
    left = _left()
    return min(left, key=lambda name: left[name]) if left else ""


def _left() -> "dict[str, int]":
    limits = {name: resource.getrlimit(getattr(resource, name))[0] for name in _COLUMNS}
    return {
        name: max(limit - _mapped(_COLUMNS[name]), 0)
        for name, limit in limits.items()
        if limit != resource.RLIM_INFINITY
    }


@contextlib.contextmanager
def limited(left: Optional[int]) -> Iterator[None]:
    """With no more than `left` bytes to map; threads are started before, as earlier calls had done.

    By the limit on the address space, whichever it was: what a call maps is private memory that it writes.
    """
    if left is None:
        yield
        return
    torch.ones(ENOUGH_FOR_THREADS).sum()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _mapped() + left
    resource.setrlimit(
        resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mapped(column: int = 0) -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[column]) * resource.getpagesize()
