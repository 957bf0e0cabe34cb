"""A call of a package that will not come back, told by the calls before it while the program still runs."""

from __future__ import annotations

from math import prod

from mcp_server.evidence.captured import Captured, CapturedCall

SLOWER = 100.0  # times as long as any call before
LARGER = 8.0  # times as many elements as the largest of those, at most, for them to be told alike


def stalled_call(seen: Captured, now: float, least_s: float) -> CapturedCall | None:
    """The only call that is under way, where it takes far longer than calls of its kind.

    `now` in seconds of the wall clock; nothing younger than `least_s` is stalled. None where no call of that
    package has ended well, where those were much smaller, and where more than one is under way: threads may
    wait for each other.
    """
    under_way = [call for call in seen.calls if call.outcome == "unfinished" and not call.in_graph]
    if len(under_way) != 1:
        return None
    call = under_way[0]
    alike = [c for c in seen.calls if (c.pid, c.load, c.outcome) == (call.pid, call.load, "ok")]
    if not alike or _elements(call) > LARGER * max(map(_elements, alike)):
        return None
    usual = max(earlier.seconds or 0.0 for earlier in alike)
    return call if now - call.t >= max(least_s, SLOWER * usual) else None


def _elements(call: CapturedCall) -> int:
    return sum(prod(leaf.shape or ()) for leaf in call.leaves)
