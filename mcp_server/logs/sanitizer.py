"""Reads a text report of compute-sanitizer into typed records, one for each site of a fault.

Formats: 2022-2026 (old `at 0x17b0 in kernel`, new `at kernel+0x370 in file:25`), Triton and C++ names. A
faulty kernel yields a record of about 3 KB per thread, so a report may have 400 MB.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mcp_server.logs.crash_reports import Access, Nearest

MARK = "========="
MAX_SITES = 500
MAX_LINES = 64  # how many lines of one record are kept
LONGEST_LINE = 1 << 16

_BODY_MARK = MARK + "     "
_FRAME_MARK = MARK + "         "
_NOT_RECORDS = (
    "COMPUTE-SANITIZER",
    "Error: process didn't terminate",
    "Target application returned an error",
    "LEAK SUMMARY",
)
_KINDS: tuple[tuple[str, str], ...] = (
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

_NUMBER = r"[\d,]+"
_SUMMARY = re.compile(
    r"(?:ERROR SUMMARY: (?P<count>[\d,]+) errors?|RACECHECK SUMMARY: (?P<hazards>[\d,]+) hazards? displayed)"
    r"(?P<rest>.*)|ERROR SUMMARY|RACECHECK SUMMARY"
)
_ACCESS = re.compile(
    rf"(?:Invalid|Uninitialized|Misaligned|Out-of-range) (?:__\w+__|\w+)?(?: memory)? ?"
    rf"(?P<direction>read|write|atomic|reduction)?(?: access)?(?: \w+)*? of size (?P<size>{_NUMBER})"
)
_PLACES = (
    re.compile(r"at (?P<kernel>.+?)\+0x[0-9a-fA-F]+(?: in (?P<file>.+?):(?P<line>\d+)(?::.*)?)?$"),
    re.compile(r"at 0x[0-9a-fA-F]+ in (?P<file>[^:]+):(?P<line>\d+)(?::(?P<kernel>.+))?$"),
    re.compile(r"at 0x[0-9a-fA-F]+ in (?P<kernel>.+)$"),
)
_THREAD = re.compile(r"by threads? \((\d+),(\d+),(\d+)\).*? in block \((\d+),(\d+),(\d+)\)")
_ADDRESS = re.compile(r"(?:Address|Access (?:to|at)) (?P<address>0x[0-9a-fA-F]+)(?: (?P<problem>.+))?")
_NEAREST = re.compile(
    rf"and is (?:(?P<distance>{_NUMBER}) bytes? (?P<side>before|after)|(?P<inside>inside)) "
    rf"the nearest allocation at (?P<address>0x[0-9a-fA-F]+) of size (?P<size>{_NUMBER})"
)
_LAUNCH = re.compile(r"Host Frame:.*run_impl.*\[(?P<offset>0x[0-9a-fA-F]+)\](?: in \S+)?\s*$")
_DEVICE_FRAME = re.compile(r"Device Frame:\s*(?P<kernel>.+?)(?:\+0x[0-9a-fA-F]+| \[0x[0-9a-fA-F]+\])")
_ASSERT_FUNCTION = "__assertfail"
_READ_BELOW = ("at ", "by thread", "Address ", "Access ", "and is ", "Saved host backtrace")


@dataclass(frozen=True)
class SanitizerReport:
    """What a run under compute-sanitizer reported.

    A site combines all records with the same text, instruction and launch. Its `kind` is one of `_KINDS`,
    `misaligned` or `other`; address, thread and block come from the first record. `errors` is the number of
    errors in the summary. None if the report was cut off before the summary.
    """

    sites: tuple[Access, ...] = ()
    errors: int | None = None
    complete: bool = True
    messages: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[Access, ...]:
        """The sites that are kernel faults, including asserts but not leaks or API errors."""
        return tuple(site for site in self.sites if site.kind not in ("leak", "api_error", "other"))


_Key = tuple[str, str, str]  # identifies a site: header, location of the instruction, frame of the launch


class SanitizerReader:
    """Reads the text report line by line and passes the program's own lines to `on_program`.

    Records are counted by site, in bounded memory.
    """

    def __init__(self, on_program: Callable[[str], None] | None = None) -> None:
        self.seen = False
        self._on_program = on_program
        self._sites: dict[_Key, Access] = {}
        self._counts: Counter[_Key] = Counter()
        self._head = self._launch = ""
        self._body: list[str] = []
        self._frames: list[str] = []
        self._messages: dict[str, None] = {}
        self._errors: int | None = None

    def feed(self, line: str) -> None:
        if not line.startswith(MARK):
            if self._on_program is not None:
                self._on_program(line)
            return
        if line.startswith(_FRAME_MARK):
            if "run_impl" in line and not self._launch:
                self._launch = line
            if len(self._frames) < MAX_LINES:
                self._frames.append(line)
            return
        self.seen = True
        if line.startswith(_BODY_MARK):
            if len(self._body) < MAX_LINES:
                self._body.append(line)
            return
        self._end_record()
        head = _text(line)
        if summary := _SUMMARY.match(head):
            count = summary["count"] or summary["hazards"]
            if count and self._errors is None and not summary["rest"].startswith(" were not printed"):
                self._errors = _number(count)
        elif head and not head.startswith(_NOT_RECORDS):
            self._head = head

    def _end_record(self) -> None:
        if not self._head:
            return
        head, body = self._head, self._body
        if body or self._frames or is_record(head):
            key = (head, body[0] if body else "", self._launch)
            if key not in self._sites and len(self._sites) < MAX_SITES:
                self._sites[key] = _site(head, [_text(line) for line in body], self._frames)
            if key in self._sites:
                self._counts[key] += 1
        elif len(self._messages) < MAX_SITES:
            self._messages[head] = None
        self._head, self._body, self._frames, self._launch = "", [], [], ""

    def report(self) -> SanitizerReport:
        """The report of the lines read so far."""
        self._end_record()
        return SanitizerReport(
            sites=tuple(replace(site, count=self._counts[key]) for key, site in self._sites.items()),
            errors=self._errors,
            complete=self._errors is not None or not self.seen,
            messages=tuple(self._messages),
        )


def is_record(head: str) -> bool:
    """Whether a header line is a record even without a body."""
    return head.startswith(("Invalid ", "Leaked ", "Program hit ", "Warp ", "Error: Race", "Uninitialized "))


def _text(line: str) -> str:
    return line[len(MARK) :].strip()


def _number(text: str | None) -> int:
    """Parse an integer with or without thousands commas. 0 if the text is None or empty."""
    return int((text or "").replace(",", "")[:20] or 0)


def _place(head: str, texts: list[str], frames: list[str]) -> tuple[str, str, int | None]:
    """Kernel, file and line of a record."""
    # racecheck names the location in the header, after the words " access at ".
    places = [*texts, *(f"at {place}" for place in head.split(" access at ", 1)[1:])]
    found = (pattern.match(text) for text in places for pattern in _PLACES)
    place = next((match.groupdict("") for match in found if match), {})
    line, kernel = place.get("line"), place.get("kernel", "")
    if not kernel or kernel == _ASSERT_FUNCTION:
        outermost_first = (_DEVICE_FRAME.search(frame) for frame in reversed(frames))
        kernels = (match["kernel"].strip() for match in outermost_first if match)
        kernel = next((name for name in kernels if name != _ASSERT_FUNCTION), "")
    return kernel, place.get("file", ""), int(line[:9]) if line else None


def _site(head: str, texts: list[str], frames: list[str]) -> Access:
    """Build a site from the lines of its first record, without their marks."""
    kernel, file, line = _place(head, texts, frames)
    access = _ACCESS.match(head)
    thread = next(filter(None, map(_THREAD.match, texts)), None)
    x, y, z, block_x, block_y, block_z = (int(n[:9]) for n in thread.groups()) if thread else (0,) * 6
    bad = next(filter(None, map(_ADDRESS.search, texts)), None)
    launch = next(filter(None, map(_LAUNCH.search, frames)), None)
    near = next(filter(None, map(_NEAREST.match, texts)), None)
    nearest = None
    if near:
        size, distance = _number(near["size"]), _number(near["distance"])
        nearest = Nearest(int(near["address"], 16), size, distance, near["side"] or "inside")
    kind_text, text = head.removeprefix("Error: ").removeprefix("Warning: "), head[:300]
    kind = next((kind for start, kind in _KINDS if kind_text.startswith(start)), "other")
    problem = (bad["problem"] or "")[:100] if bad else ""
    if "misaligned" in problem or "isaligned" in head:
        kind = "misaligned"
    elif kind == "race":  # add the line about the other access
        text = " ".join([text, *(each[:300] for each in texts if not each.startswith(_READ_BELOW))][:2])
    return Access(
        tool="compute-sanitizer",
        kind=kind,
        text=text,
        kernel=kernel[:500],
        file=file,
        line=line,
        direction=(access["direction"] or "") if access else "",
        size=_number(access["size"]) if access else None,
        problem=problem,
        thread=(x, y, z) if thread else None,
        block=(block_x, block_y, block_z) if thread else None,
        address=int(bad["address"], 16) if bad else None,
        nearest=nearest,
        launch_offset=int(launch["offset"], 16) if launch else None,
    )


def read_sanitizer_file(path: Path, on_program: Callable[[str], None] | None = None) -> SanitizerReport:
    """Read a report of any size, possibly mixed with the program's own output. May raise `OSError`.

    A line longer than 64 KiB counts as several.
    """
    reader = SanitizerReader(on_program)
    with path.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        for line in iter(lambda: stream.readline(LONGEST_LINE), ""):
            reader.feed(line.rstrip("\r\n"))
    return reader.report()
