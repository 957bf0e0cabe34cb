"""Large files in pieces between separators, read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

CHUNK = 1 << 20
LONGEST = 1 << 22  # bytes of a piece; a longer one is cut at a line's end


def pieces(stream: IO[bytes], separator: bytes) -> Iterator[tuple[bytes, bool]]:
    """Each piece without its separator, and whether a separator ended it."""
    rest = b""
    while chunk := stream.read(CHUNK):
        *whole, rest = (rest + chunk).split(separator)
        for piece in whole:
            yield piece, True
        if len(rest) > LONGEST:
            cut = rest.rfind(b"\n", 0, -len(separator)) + 1 or len(rest)
            yield rest[:cut], False
            rest = rest[cut:]
    if rest:
        yield rest, False
