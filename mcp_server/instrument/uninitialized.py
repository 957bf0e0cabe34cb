"""Arguments that hold nothing yet when a launch begins, although the kernel's parameter says read and write.

Inductor names a parameter in_out_ptr also where a fresh buffer is filled first and read after; its values
before the launch are whatever the memory held.
"""

from __future__ import annotations

from mcp_server.package.launches import Launch
from mcp_server.package.wrapper import Body

FRESH = frozenset({"allocated", "pool", "declared"})


def uninitialized(body: Body) -> dict[int, tuple[str, ...]]:
    """Variables by index of the launch before which nothing, in textual order, has written their memory."""
    fresh = {buffer.storage for buffer in body.buffers.values() if buffer.kind in FRESH}
    written: set[int] = set()
    found = {}
    for launch in body.launches:
        written |= {_storage(body, t.writes) for t in body.transfers if t.before <= launch.index}
        names = tuple(n for n in _tensors(launch) if _storage(body, n) in fresh - written)
        if names:
            found[launch.index] = names
        written |= {_storage(body, name) for name in launch.writes}
    return found


def _tensors(launch: Launch) -> tuple[str, ...]:
    return tuple(dict.fromkeys(a.target for a in launch.tensors if a.target))


def _storage(body: Body, name: str) -> int:
    buffer = body.buffers.get(name)
    return buffer.storage if buffer is not None else -1
