"""Helpers for tests of the log readers: recordings, and expected facts of logs."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mcp_server.logs.log import read_log
from mcp_server.logs.sanitizer import SanitizerReader
from tests.recorded import RECORDINGS

GOLD = RECORDINGS / "expected-logs.json"


def lines_of(name: str) -> Iterator[str]:
    """The lines of a recording."""
    with (RECORDINGS / name).open(encoding="utf-8") as stream:
        yield from stream


def read(*lines: str) -> Any:
    """Read a log with these lines."""
    return read_log(lines)


def read_sanitizer(lines: Iterable[str], on_program: Callable[[str], None] | None = None) -> Any:
    """Read a report line by line, as a log is read."""
    reader = SanitizerReader(on_program)
    for line in lines:
        reader.feed(line)
    return reader.report()


def digest(facts: Any) -> dict[str, Any]:
    """The facts of a log that a gold file has."""
    root = facts.root
    return {
        "root": root.family.id if root else None,
        "line": root.line if root else None,
        "count": root.count if root else None,
        "candidates": list(root.candidates) if root else [],
        "fields": dict(root.fields) if root else {},
        "last_launch": facts.last_launch.kernel if facts.last_launch else None,
        "launches": facts.launches,
        "frames": [[frame.file, frame.line, frame.code] for frame in facts.frames],
        "locations": [[file, int(line)] for file, _, line in (at.rpartition(":") for at in facts.locations)],
        "truncated": facts.truncated,
    }


def gold() -> dict[str, Any]:
    """The expected digests by file name. Fields that a row omits are as in an empty log."""
    nothing = digest(read_log(()))
    rows = json.loads(GOLD.read_text())
    return {name: {**nothing, **row} for name, row in rows.items()}
