"""The limit on the address space of a process, for one call."""

from __future__ import annotations

import resource

import pytest
import torch

from mcp_server.worker.process import headroom, limited

LEFT = 1 << 30


@pytest.mark.skipif(headroom()[0] is not None, reason="the tests themselves run under such a limit")
def test_a_call_has_what_the_program_had_left() -> None:
    """Within the limit a larger request is refused, as it was in the program; behind it all is as before."""
    with limited(LEFT):
        left, limit = headroom()
        assert left is not None and left <= LEFT and limit == "RLIMIT_AS"
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(2 * LEFT, dtype=torch.uint8)
    assert headroom() == (None, "")
    assert torch.empty(2 * LEFT, dtype=torch.uint8).numel() == 2 * LEFT


def test_no_limit_is_no_limit() -> None:
    """A program without one is replayed without one."""
    _, before = headroom()
    with limited(None):
        assert headroom()[1] == before


@pytest.mark.skipif(headroom()[0] is not None, reason="the tests themselves run under such a limit")
def test_private_memory_has_a_limit_of_its_own() -> None:
    """Where it leaves less than the address space, it is the one that is reported."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 50, hard))
    try:
        left, limit = headroom()
        assert left is not None and left < 1 << 50 and limit == "RLIMIT_DATA"
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert headroom() == (None, "")
