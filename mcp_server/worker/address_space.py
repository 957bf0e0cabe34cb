"""The limit on a process's address space: what a program had left of it, and a call under the same."""

from __future__ import annotations

import contextlib
import resource
from typing import Iterator, Optional

import torch

ENOUGH_FOR_THREADS = 1 << 20  # elements that torch splits among its threads


def headroom() -> Optional[int]:
    """Bytes that this process may still map; None where nothing limits it."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else max(limit - _mapped(), 0)


@contextlib.contextmanager
def limited(left: Optional[int]) -> Iterator[None]:
    """With no more than `left` bytes to map; threads are started before, as earlier calls had done."""
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


def _mapped() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[0]) * resource.getpagesize()
