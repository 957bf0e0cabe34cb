"""compute-sanitizer's XML report (`--xml --save FILE`), read as a stream.

A document type declaration is refused: the tool writes none, and entities are the way to make a small
file large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from xml.parsers import expat

from mcp_server.errors import ProblemError
from mcp_server.evidence.sanitizer import MAX_FRAMES, SanitizerReport, Site, SiteTable, Triple, kind_of
from mcp_server.evidence.sanitizer_lines import HostFrame

_CHUNK = 1 << 16
MAX_TEXT = 2_000


def read_sanitizer_xml(path: Path) -> SanitizerReport:
    """Read an XML report; one that was cut off gives its whole records and `complete=False`.

    Raises ProblemError when the file cannot be read or is not such a report.
    """
    try:
        with path.open("rb") as stream:
            return _XmlReader().read(stream)
    except OSError as error:
        raise ProblemError(f"cannot read the sanitizer's XML: {error.strerror}", value=str(path)) from error


@dataclass
class _Record:
    """The texts of one record, by tag; frames apart."""

    texts: dict[str, str] = field(default_factory=dict)
    thread: dict[str, int] = field(default_factory=dict)
    block: dict[str, int] = field(default_factory=dict)
    frames: list[dict[str, str]] = field(default_factory=list)


class _XmlReader:
    def __init__(self) -> None:
        self._table = SiteTable()
        self._path: list[str] = []
        self._text: list[str] = []
        self._length = 0
        self._record = _Record()
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = _refuse
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters

    def read(self, stream: IO[bytes]) -> SanitizerReport:
        complete = True
        try:
            while chunk := stream.read(_CHUNK):
                self._parser.Parse(chunk, False)
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            if not self._table.records and "ComputeSanitizerOutput" not in self._path[:1]:
                raise ProblemError(
                    f"not a compute-sanitizer XML report: {error}", allowed="a file written with --xml --save"
                ) from error
            complete = False
        return SanitizerReport(
            sites=self._table.result(),
            records=self._table.records,
            complete=complete,
            dropped_sites=self._table.dropped,
        )

    def _start(self, tag: str, _attributes: dict[str, str]) -> None:
        self._path.append(tag)
        self._text, self._length = [], 0
        if tag == "record":
            self._record = _Record()
        elif tag == "frame" and len(self._record.frames) < MAX_FRAMES:
            self._record.frames.append({})

    def _characters(self, text: str) -> None:
        if self._length < MAX_TEXT:
            self._text.append(text)
            self._length += len(text)

    def _end(self, tag: str) -> None:
        text = "".join(self._text).strip()[:MAX_TEXT]
        self._text = []
        self._path.pop()
        if tag == "record":
            self._finish(self._record)
        elif "frame" in self._path and self._record.frames:
            self._record.frames[-1][tag] = text
        elif tag in ("x", "y", "z"):
            self._add_index(tag, text)
        elif text and tag not in self._record.texts:
            self._record.texts[tag] = text

    def _add_index(self, axis: str, text: str) -> None:
        indices = self._record.thread if "threadIdx" in self._path else self._record.block
        indices[axis] = int(text[:9]) if text.isdecimal() else 0

    def _finish(self, record: _Record) -> None:
        texts = record.texts
        launch = next((frame.get("pc", "") for frame in record.frames if _is_run(frame)), "")
        key = (texts.get("text", ""), texts.get("func", ""), texts.get("pc", ""), launch)
        self._table.add(key, _hex(texts.get("address")), _maker(record))


def _refuse(*_arguments: object) -> None:
    raise ProblemError(
        "the XML report declares a document type, which compute-sanitizer never does",
        allowed="a file written with --xml --save",
    )


def _is_run(frame: dict[str, str]) -> bool:
    return "run_impl" in frame.get("func", "")


def _maker(record: _Record) -> Callable[[], Site]:
    return lambda: _site(record)


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
