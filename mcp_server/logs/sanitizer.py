"""compute-sanitizer's report: typed records, one for each site of a fault, read from text of any size.

compute-sanitizer's report: typed records, one for each site of a fault, from text or XML.

Formats: 2022-2026 (old `at 0x17b0 in kernel`, new `at kernel+0x370 in file:25`), Triton and C++ names.
The text names the nearest allocation, the XML the whole path of the source file.

compute-sanitizer's text report out of a file: a record that repeats a known one is only counted.

A fault of one kernel gives a record of some 3 KB per thread; 150,000 of them are 400 MB. Only the parts
that tell one site from another, and the address, are looked at in a repeated record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal, NamedTuple

from mcp_server.logs import sanitizer_lines as lines_of
from mcp_server.logs.sanitizer_lines import MARK, HostFrame, Nearest

RecordKind = Literal[
    "invalid_access", "assert", "exception", "uninitialised", "race", "barrier", "leak", "api_error", "other"
]

MAX_SITES = 500
MAX_FRAMES = 64
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Site:
    """All records of one fault: same text, same instruction, same launch.

    Addresses are of the first record and the lowest and highest of all; `thread` and `block` are the first
    record's; `offset` is the instruction's offset in the kernel, in bytes.
    """

    kind: RecordKind
    text: str
    kernel: str = ""
    offset: int | None = None
    file: str = ""
    line: int | None = None
    space: str = ""
    direction: str = ""
    size: int | None = None
    problem: str = ""
    thread: Triple | None = None
    block: Triple | None = None
    address: int | None = None
    address_low: int | None = None
    address_high: int | None = None
    nearest: Nearest | None = None
    host_frames: tuple[HostFrame, ...] = ()
    device_frames: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    count: int = 1

    @property
    def launch_offset(self) -> int | None:
        """Offset of the launching call inside the package's library: tells two launches of a kernel apart."""
        frame = next((frame for frame in self.host_frames if "run_impl" in frame.function), None)
        return frame.offset if frame else None


@dataclass(frozen=True)
class SanitizerReport:
    """What a run under compute-sanitizer reported.

    `errors` is the tool's own count (None without a summary: the run was cut off); `records` is how many were
    printed and read. `target_failed` only says that the program ended with an error.
    """

    sites: tuple[Site, ...] = ()
    records: int = 0
    errors: int | None = None
    not_printed: int = 0
    target_failed: bool = False
    complete: bool = True
    dropped_sites: int = 0
    messages: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[Site, ...]:
        """The sites that are faults of a kernel, asserts included; not leaks and API errors."""
        return tuple(site for site in self.sites if site.kind not in ("leak", "api_error", "other"))


@dataclass
class SiteTable:
    """Counts records by site, in bounded memory."""

    sites: dict[tuple[str, ...], Site] = field(default_factory=dict)
    counts: dict[tuple[str, ...], int] = field(default_factory=dict)
    spans: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    records: int = 0
    dropped: int = 0

    def add(self, key: tuple[str, ...], address: int | None, make: Callable[[], Site]) -> None:
        """Count a record; `make` is called for the first one of a site only."""
        if key not in self.sites:
            if len(self.sites) >= MAX_SITES:
                self.records += 1
                self.dropped += 1
                return
            self.sites[key] = make()
            self.counts[key] = 0
        self.count(key, address)

    def count(self, key: tuple[str, ...], address: int | None) -> None:
        """Count a record of a known site."""
        self.records += 1
        self.counts[key] += 1
        if address is not None:
            span = self.spans.setdefault(key, [address, address])
            span[0], span[1] = min(span[0], address), max(span[1], address)

    def result(self) -> tuple[Site, ...]:
        """The sites in the order of their first record."""
        return tuple(self._counted(key, site) for key, site in self.sites.items())

    def _counted(self, key: tuple[str, ...], site: Site) -> Site:
        low, high = self.spans.get(key, (None, None))
        return replace(site, count=self.counts[key], address_low=low, address_high=high)


class SanitizerReader:
    """Reads the text report line by line; the program's own lines are handed to `on_program`."""

    def __init__(self, on_program: Callable[[str], None] | None = None) -> None:
        self._on_program = on_program
        self._table = SiteTable()
        self._head = ""
        self._body: list[str] = []
        self._frames: list[str] = []
        self._launch = ""
        self._messages: dict[str, None] = {}
        self._errors: int | None = None
        self._not_printed = 0
        self._target_failed = self.seen = False

    def feed(self, line: str) -> bool:
        """Take a line; False when it is the program's own."""
        if line.startswith(lines_of.FRAME_MARK):
            self._add_frame(line)
            return True
        if not line.startswith(MARK):
            if self._on_program is not None:
                self._on_program(line)
            return False
        self.seen = True
        if line.startswith(lines_of.BODY_MARK):
            if len(self._body) < MAX_FRAMES:
                self._body.append(line)
        else:
            self._end_record()
            self._begin(_head(line))
        return True

    def _add_frame(self, line: str) -> None:
        if "run_impl" in line and not self._launch:
            self._launch = line
        if len(self._frames) < MAX_FRAMES:
            self._frames.append(line)

    def _begin(self, text: str) -> None:
        if not text:
            return
        if self._read_trailer(text):
            return
        self._head = text

    def _read_trailer(self, text: str) -> bool:
        summary = lines_of.SUMMARY.match(text)
        if summary is not None:
            self._read_summary(
                summary["count"] or summary["hazards"],
                not_printed=summary["rest"].startswith(" were not printed"),
            )
            return True
        if text.startswith(lines_of.TARGET_FAILED):
            self._target_failed = True
        return text.startswith(lines_of.NOT_RECORDS)

    def _read_summary(self, count: str, *, not_printed: bool) -> None:
        number = lines_of.number(count)
        if not_printed:
            self._not_printed = number
        elif self._errors is None:
            self._errors = number

    def _end_record(self) -> None:
        if not self._head:
            return
        head, body, frames = self._head, self._body, self._frames
        if body or frames or lines_of.is_record(head):
            where = body[0] if body else ""
            address = lines_of.address_in(body)
            self._table.add((head, where, self._launch), address, lambda: make_site(head, body, frames))
        elif len(self._messages) < MAX_SITES:
            self._messages[head] = None
        self._head, self._body, self._frames, self._launch = "", [], [], ""

    def known(self, head: str, where: str, launch: str) -> tuple[str, ...] | None:
        """The key of a record with these lines (header, place, frame of the launch), if one was read."""
        key = (_head(head), where, launch)
        return key if not self._head and key in self._table.sites else None

    def repeat(self, site: tuple[str, ...], address: int | None) -> None:
        """Count one more record of a site that is `known`."""
        self._table.count(site, address)

    def report(self) -> SanitizerReport:
        """What was read so far."""
        self._end_record()
        return SanitizerReport(
            sites=self._table.result(),
            records=self._table.records,
            errors=self._errors,
            not_printed=self._not_printed,
            target_failed=self._target_failed,
            complete=self._errors is not None or not self.seen,
            dropped_sites=self._table.dropped,
            messages=tuple(self._messages),
        )


def _head(line: str) -> str:
    return line[len(MARK) :].strip()


def read_sanitizer(lines: Iterable[str], on_program: Callable[[str], None] | None = None) -> SanitizerReport:
    """Read a text report, mixed with the program's own output or not."""
    reader = SanitizerReader(on_program)
    for line in lines:
        reader.feed(line)
    return reader.report()


def make_site(head: str, body: list[str], frames: list[str]) -> Site:
    """A site from the first record's lines."""
    texts = [line[len(MARK) :].strip() for line in body]
    access = lines_of.ACCESS.match(head)
    place = lines_of.place_of([*texts, *lines_of.places_in_head(head)])
    thread, block = lines_of.thread_of(texts)
    hosts = tuple(frame for frame in map(lines_of.host_frame, frames) if frame is not None)
    address = lines_of.address_in(body)
    return Site(
        kind=kind_of(head),
        text=head[:300],
        kernel=place.kernel or lines_of.device_kernel(frames),
        offset=place.offset,
        file=place.file,
        line=place.line,
        space=access["space"] if access else "",
        direction=(access["direction"] or "") if access else "",
        size=lines_of.number(access["size"]) if access else None,
        problem=lines_of.problem_of(texts),
        thread=thread,
        block=block,
        address=address,
        nearest=lines_of.nearest_of(texts),
        host_frames=hosts,
        device_frames=tuple(lines_of.device_frames(frames)),
        details=tuple(text[:300] for text in texts if not lines_of.is_known(text)),
    )


_KINDS: tuple[tuple[str, RecordKind], ...] = (
    ("Invalid ", "invalid_access"),
    ("Out-of-range ", "invalid_access"),
    ("Misaligned ", "invalid_access"),
    ("Uninitialized ", "uninitialised"),
    ("Warp assert", "assert"),
    ("Race ", "race"),
    ("Potential ", "race"),
    ("Barrier ", "barrier"),
    ("Leaked ", "leak"),
    ("Program hit ", "api_error"),
    ("Warp ", "exception"),
    ("Lane ", "exception"),
    ("Device ", "exception"),
    ("Hardware ", "exception"),
    ("Malloc/Free ", "invalid_access"),
)


def kind_of(head: str) -> RecordKind:
    """The kind of record that a header line begins."""
    text = head.removeprefix("Error: ").removeprefix("Warning: ")
    return next((kind for start, kind in _KINDS if text.startswith(start)), "other")


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
