"""compute-sanitizer's XML report (`--xml --save FILE`), read record by record.

A record is parsed only when its text, its place and its stack were not met before: 150,000 records of one
fault are 800 MB. A document type declaration is refused: the tool writes none, and entities are the way to
make a small file large.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from xml.parsers import expat

from mcp_server.errors import ProblemError
from mcp_server.evidence.pieces import pieces
from mcp_server.evidence.sanitizer import MAX_FRAMES, SanitizerReport, Site, SiteTable, Triple, kind_of
from mcp_server.evidence.sanitizer_lines import HostFrame

MAX_TEXT = 2_000
MAX_KNOWN = 4_096

_BEGIN, _END = b"<record>", b"</record>"
_ROOT, _ROOT_END = b"<ComputeSanitizerOutput", b"</ComputeSanitizerOutput>"
_ADDRESS = re.compile(rb"<address>\s*(0x[0-9a-fA-F]+)\s*</address>")

_Key = tuple[str, ...]


def read_sanitizer_xml(path: Path) -> SanitizerReport:
    """Read an XML report; one that was cut off gives its whole records and `complete=False`.

    Raises ProblemError when the file cannot be read or is not such a report.
    """
    try:
        with path.open("rb") as stream:
            return _Reader().read(stream)
    except OSError as error:
        raise ProblemError(f"cannot read the sanitizer's XML: {error.strerror}", value=str(path)) from error


class _Reader:
    """Counts records by site; those of a known text, place and stack without parsing them."""

    def __init__(self) -> None:
        self._table = SiteTable()
        self._known: dict[tuple[bytes, bytes], _Key] = {}

    def read(self, stream: IO[bytes]) -> SanitizerReport:
        complete = started = False
        for piece, ended in pieces(stream, _END):
            started = started or _starts(piece)
            if not ended:
                complete = _ROOT_END in piece and _BEGIN not in piece
            elif not self._record(piece):
                break
        if not started:
            _starts(b"")
        return SanitizerReport(
            sites=self._table.result(),
            records=self._table.records,
            complete=complete,
            dropped_sites=self._table.dropped,
        )

    def _record(self, piece: bytes) -> bool:
        """Count one record; False when it is no XML."""
        begin = piece.find(_BEGIN)
        where = piece.find(b"<where>", begin)
        text = piece.find(b"<text>", begin)
        raw = (piece[text : piece.find(b"</text>", text)], piece[where:])
        key = self._known.get(raw)
        if key is not None and begin >= 0 <= where:
            address = _ADDRESS.search(piece, begin, where)
            self._table.count(key, int(address[1], 16) if address else None)
            return True
        record = parse_record(piece[begin:] + _END) if begin >= 0 else None
        if record is None:
            return False
        self._table.add(record.key, _hex(record.texts.get("address")), lambda: _site(record))
        if where >= 0 <= text and len(self._known) < MAX_KNOWN and record.key in self._table.sites:
            self._known[raw] = record.key
        return True


def _starts(piece: bytes) -> bool:
    """Whether the first piece begins such a report; raises ProblemError when it does not."""
    if b"<!DOCTYPE" in piece:
        raise ProblemError(
            "the XML report declares a document type, which compute-sanitizer never does",
            allowed="a file written with --xml --save",
        )
    if _ROOT not in piece:
        raise ProblemError("not a compute-sanitizer XML report", allowed="a file written with --xml --save")
    return True


@dataclass
class _Record:
    """The texts of one record, by tag; frames apart."""

    texts: dict[str, str] = field(default_factory=dict)
    thread: dict[str, int] = field(default_factory=dict)
    block: dict[str, int] = field(default_factory=dict)
    frames: list[dict[str, str]] = field(default_factory=list)

    @property
    def key(self) -> _Key:
        """What is the same in all records of one site."""
        launch = next((frame.get("pc", "") for frame in self.frames if _is_run(frame)), "")
        return (self.texts.get("text", ""), self.texts.get("func", ""), self.texts.get("pc", ""), launch)


def parse_record(element: bytes) -> _Record | None:
    """The element `<record>`; None when it is not well formed."""
    builder = _Builder()
    try:
        builder.parser.Parse(element, True)
    except expat.ExpatError:
        return None
    return builder.record


class _Builder:
    """Collects the texts of one record."""

    def __init__(self) -> None:
        self.record = _Record()
        self._path: list[str] = []
        self._text: list[str] = []
        self._length = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def _start(self, tag: str, _attributes: dict[str, str]) -> None:
        self._path.append(tag)
        self._text, self._length = [], 0
        if tag == "frame" and len(self.record.frames) < MAX_FRAMES:
            self.record.frames.append({})

    def _characters(self, text: str) -> None:
        if self._length < MAX_TEXT:
            self._text.append(text)
            self._length += len(text)

    def _end(self, tag: str) -> None:
        text = "".join(self._text).strip()[:MAX_TEXT]
        self._text = []
        self._path.pop()
        if "frame" in self._path and self.record.frames:
            self.record.frames[-1][tag] = text
        elif tag in ("x", "y", "z"):
            self._add_index(tag, text)
        elif text and tag not in self.record.texts:
            self.record.texts[tag] = text

    def _add_index(self, axis: str, text: str) -> None:
        indices = self.record.thread if "threadIdx" in self._path else self.record.block
        indices[axis] = int(text[:9]) if text.isdecimal() else 0


def _is_run(frame: dict[str, str]) -> bool:
    return "run_impl" in frame.get("func", "")


def _site(record: _Record) -> Site:
    texts = record.texts
    text = texts.get("text", "")
    return Site(
        kind=kind_of(text),
        text=text[:300],
        kernel=texts.get("func", "")[:500],
        offset=_hex(texts.get("pc")),
        file=texts.get("path", ""),
        line=_integer(texts.get("line")),
        space=texts.get("space", ""),
        direction=texts.get("direction", ""),
        size=_integer(texts.get("size")),
        problem=texts.get("error", ""),
        thread=_triple(record.thread),
        block=_triple(record.block),
        address=_hex(texts.get("address")),
        host_frames=tuple(_frame(frame) for frame in record.frames),
    )


def _frame(fields: dict[str, str]) -> HostFrame:
    line = _integer(fields.get("line"))
    return HostFrame(
        function=fields.get("func", "")[:500],
        offset=_hex(fields.get("pc")),
        module=fields.get("module", ""),
        file=fields.get("path", ""),
        line=line,
    )


def _triple(indices: dict[str, int]) -> Triple | None:
    if not indices:
        return None
    return indices.get("x", 0), indices.get("y", 0), indices.get("z", 0)


def _integer(text: str | None) -> int | None:
    return int(text[:18]) if text and text.isdecimal() else None


def _hex(text: str | None) -> int | None:
    try:
        return int(text, 16) if text else None
    except ValueError:
        return None
