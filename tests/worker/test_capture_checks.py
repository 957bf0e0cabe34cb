"""Which names a failed check of the program's own compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcp_server.worker.capture.checks import compared
from mcp_server.worker.encode import raised_in


class Tenant:
    golden = 1.0
    other = 2.0


def too_far() -> None:
    tenant, unrelated = Tenant(), 5.0
    gap = abs(3.0 - tenant.golden)
    print(unrelated)
    if gap > 1e-4:
        raise RuntimeError("off")


def too_little() -> None:
    before, after = 1.0, 1.0
    rise = after - before
    if rise < 0.5:
        raise RuntimeError("no rise")


def asserted() -> None:
    want, got = 1.0, 2.0
    assert abs(want - got) < 1e-3


def asserted_more() -> None:
    old, new = 1.0, 1.0
    assert new > old


@pytest.mark.parametrize(
    ("check", "names"),
    [
        (too_far, ["abs", "gap", "tenant", "tenant.golden", "Tenant"]),
        (too_little, []),
        (asserted, ["abs", "got", "want"]),
        (asserted_more, []),
    ],
)
def test_what_the_number_was_computed_from(check: Callable[[], None], names: list[str]) -> None:
    """Also by way of a variable; nothing where more difference would have passed."""
    with pytest.raises((RuntimeError, AssertionError)) as caught:
        check()
    places = [(frame, line) for frame, line in raised_in(caught.value)]
    assert compared(places) == sorted(names)
