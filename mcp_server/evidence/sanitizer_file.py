"""compute-sanitizer's text report out of a file: a record that repeats a known one is only counted.

A fault of one kernel gives a record of some 3 KB per thread; 150,000 of them are 400 MB. Only the parts
that tell one site from another, and the address, are looked at in a repeated record.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mcp_server.evidence.pieces import pieces
from mcp_server.evidence.sanitizer import MAX_SITES, SanitizerReader, SanitizerReport

_SEPARATOR = b"\n========= \n"
_LINE = b"\n========="
_BODY, _FRAME = b"=========     ", b"=========         "
_ADDRESS = re.compile(rb"(?:Address|Access (?:to|at)) (0x[0-9a-fA-F]+)")

_Key = tuple[bytes, bytes]


def read_sanitizer_file(path: Path, on_program: Callable[[str], None] | None = None) -> SanitizerReport:
    """Like `read_sanitizer` of the file's lines. Raises `OSError`."""
    reader = SanitizerReader(on_program)
    repeats = _Repeats(reader)
    with path.open("rb") as stream:
        for piece, ended in pieces(stream, _SEPARATOR):
            if not (ended and repeats.count(piece)):
                repeats.read(piece, ended)
    return reader.report()


class _Known(NamedTuple):
    """A record that was read: its site in the table, and how many line ends are in it."""

    site: tuple[str, ...]
    lines: int


class _Repeats:
    """Which pieces are records whose site is known already."""

    def __init__(self, reader: SanitizerReader) -> None:
        self._reader = reader
        self._known: dict[_Key, _Known] = {}

    def count(self, piece: bytes) -> bool:
        """Count a record like one that was read before; False for everything else.

        Another number of lines is another record, or one that the program has printed into.
        """
        key = _key(piece)
        known = self._known.get(key)
        if known is None or piece.count(b"\n") != known.lines:
            return False
        address = _ADDRESS.search(piece, len(key[0]))
        self._reader.repeat(known.site, int(address[1], 16) if address else None)
        return True

    def read(self, piece: bytes, ended: bool) -> None:
        """Read the lines; a separator ends the record that they began."""
        for line in piece.decode("utf-8", "replace").split("\n"):
            self._reader.feed(line.rstrip("\r"))
        if not ended:
            return
        self._reader.feed("========= ")
        lines = piece.count(b"\n")
        site = self._reader.known(*_texts(_key(piece)))
        if site is not None and len(self._known) < MAX_SITES and piece.count(_LINE) == lines:
            self._known[_key(piece)] = _Known(site, lines)


def _key(piece: bytes) -> _Key:
    """The record's first two lines, and the frame of the launch in the package."""
    head = piece.find(b"\n")
    where = piece.find(b"\n", head + 1)
    launch = piece.find(b"run_impl", where)
    begin = piece.rfind(b"\n", 0, launch) + 1
    return piece[:where], piece[begin : piece.find(b"\n", launch)] if launch >= 0 else b""


def _texts(key: _Key) -> tuple[str, str, str]:
    """The lines of a key: header, place, launch. Empty ones where the piece is no plain record."""
    head, _, where = key[0].decode("utf-8", "replace").partition("\n")
    plain = where.startswith(_BODY.decode()) and not where.startswith(_FRAME.decode())
    return (head, where, key[1].decode("utf-8", "replace")) if plain else ("", "", "")
