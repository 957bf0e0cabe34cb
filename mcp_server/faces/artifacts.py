"""Reads the files that jobs left, by URI, a range of bytes at a time."""

from __future__ import annotations

from urllib.parse import quote

from mcp_server.errors import ProblemError
from mcp_server.jobs.lines import clean
from mcp_server.jobs.store import SCHEME, Store

PAGE_BYTES = 20_000
LARGEST_PAGE_BYTES = 200_000


def read_artifact(store: Store, job_id: str, name: str, offset: int = 0, limit: int = PAGE_BYTES) -> str:
    """Text of `limit` bytes (at most 200,000) from `offset`; what is left out is said in a last line.

    A client may print it on a terminal: escapes and control characters are left out.

    Raises ProblemError: no such job or file, a path out of the job's directory, a binary file, a bad range.
    """
    uri = f"{SCHEME}{job_id}/{quote(name)}"
    path = store.path_of(uri)
    size = path.stat().st_size
    if not 0 <= offset <= size or not 1 <= limit <= LARGEST_PAGE_BYTES:
        allowed = f"offset 0-{size}, limit 1-{LARGEST_PAGE_BYTES}"
        raise ProblemError("no such range", value=f"offset {offset}, limit {limit}", allowed=allowed)
    with path.open("rb") as file:
        file.seek(offset)
        page = file.read(limit)
    if b"\0" in page:
        raise ProblemError("the file is binary", value=name, next_call=f"open {path} with a local tool")
    return clean(page.decode("utf-8", "replace")) + _note(uri, offset + len(page), size)


def _note(uri: str, end: int, size: int) -> str:
    return "" if end >= size else f"\n[up to byte {end} of {size}; next: {uri}?offset={end}]"
