"""Reads a log as a stream: its errors, which error is the cause, and where that error points.

Memory use is bounded for a log of any size: repeated texts are counted, not kept.
"""

import io
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.logs.details import NOTHING, Details, LineMatches, look
from mcp_server.logs.facts import ErrorFact, LastLaunch, LogFacts, PythonException
from mcp_server.logs.families import BY_ID, Family, Rank, find_family
from mcp_server.logs.roots import choose_root, refine, sanitizer_errors, settle_exception, unnamed_exception
from mcp_server.logs.sanitizer import MARK, SanitizerReader, is_record
from mcp_server.logs.text import Line, TracebackReader, bound, read_line

_LAUNCH = re.compile(r"\[ (?P<when>before|after)_launch: (?P<kernel>[^\[\]]+?) \]")


BATCH = 1024
MAX_ERRORS = 200
MAX_PROCESSES = 64
TAIL = 15
MAX_BEST = 20
MAX_BETWEEN = 40  # how many lines may lie between an error and a later line that adds to it

_Key = tuple[str, str, tuple[str, ...]]

_VOLATILE = frozenset({"block", "thread"})
_WARNING = re.compile(r"[:\s]\w*Warning: ")
_CUT = re.compile(
    r"(?:\[|<|\.\.\.|…) ?(?:(?:output|log|Output|Log) )?"
    r"(?:truncated|\d+ (?:more )?(?:lines|characters|bytes) (?:omitted|truncated|skipped|elided))"
)
_LOGGED = re.compile(r".{0,60}?\b(?:ERROR|CRITICAL)\b")


def read_log(lines: Iterable[str], process: str = "") -> LogFacts:
    """Read a log, one string per line (with or without its newline).

    If `process` is given, lines with the prefix of another process are treated as empty lines.
    """
    reader = _Reader()
    numbered = enumerate(lines, start=1)
    while batch := [read_line(raw, number) for number, raw in islice(numbered, BATCH)]:
        if process:
            empty = Line(0, "", "", "", "")
            batch = [
                line if line.process in ("", process) else empty._replace(number=line.number)
                for line in batch
            ]
        reader.read(batch)
    return reader.facts()


class _Reader:
    """The state of one pass over a log."""

    def __init__(self) -> None:
        self._errors: dict[_Key, ErrorFact] = {}
        self._counts: dict[_Key, int] = {}
        self._latest: dict[str, tuple[_Key, int]] = {}
        self._tracebacks: dict[str, TracebackReader] = {}
        self._busy = False
        self._before: Line | None = None
        self._sanitizer = SanitizerReader()
        self._sanitizer_line = 0
        self._launched = 0
        self._open_launches: dict[str, LastLaunch] = {}
        self._details = Details()
        self._tail: deque[tuple[int, str]] = deque(maxlen=TAIL)
        self._best: list[tuple[int, str]] = []
        self._processes: dict[str, None] = {}
        self._lines = self._dropped = 0
        self._cut = ""

    def read(self, batch: list[Line]) -> None:
        """Read about a thousand lines. Search each line only for what its template can contain."""
        for before, line, matches in zip([self._before, *batch], batch, look(batch), strict=False):
            self._before = before
            if line.text.startswith(MARK):
                self._sanitizer.feed(line.text)
                if not self._sanitizer_line and is_record(line.text[len(MARK) :].strip()):
                    self._sanitizer_line = line.number
            elif matches is not NOTHING or self._busy:
                self._read_line(line, matches)
        for process in {line.process for line in batch if line.process}:
            if len(self._processes) < MAX_PROCESSES:
                self._processes[process] = None
        self._before = batch[-1]
        self._lines = batch[-1].number
        self._tail.extend((line.number, bound(line.text, 300)) for line in batch[-TAIL:] if line.text.strip())

    def _read_line(self, line: Line, matches: LineMatches) -> None:
        if "launches" in matches.marks:
            for launch in _LAUNCH.finditer(line.text):
                if launch["when"] == "before":
                    begun = LastLaunch(
                        bound(launch["kernel"], 300), line.number, self._launched, line.process
                    )
                    self._open_launches[line.process] = begun
                else:
                    self._launched += 1
                    self._open_launches.pop(line.process, None)
            if not _LAUNCH.sub("", line.text).strip():
                return
        exception, in_frames = self._trace(line, "traceback" in matches.marks)
        if in_frames:
            return
        if matches.details:
            # The line may give the kernel, operator or difference of the error that was logged before it.
            fields = self._details.feed(line, matches.details)
            key, number = self._latest.get(line.process, (None, 0))
            if fields and key in self._errors and line.number - number <= MAX_BETWEEN:
                error = self._errors[key]
                self._errors[key] = replace(error, fields={**fields, **error.fields})
        if "cut" in matches.marks and not self._cut and _CUT.search(line.text):
            self._cut = f"line {line.number} says that text was left out"
        found = find_family(line.text, matches.families)
        warning = "Warning: " in line.text and _WARNING.search(line.text) is not None
        if found is not None:
            family, fields = found
            if family.rank <= Rank.CONSEQUENCE or not warning:
                self._add(line, family, fields, exception)
        elif "suspicious" in matches.marks and len(self._best) < MAX_BEST and not warning:
            self._best.append((line.number, bound(line.text, 300)))

    def _trace(self, line: Line, begins: bool) -> tuple[PythonException | None, bool]:
        """The exception to which this line belongs, and whether the line is only a traceback frame."""
        key = f"{line.process}|{line.source}"
        reader = self._tracebacks.get(key)
        if reader is None or not reader.busy:
            if not begins:
                return None, False
            if len(self._tracebacks) >= MAX_PROCESSES:
                key = next(iter(self._tracebacks))
            reader = self._tracebacks.setdefault(key, TracebackReader(line.process))
            # A traceback that a logger or `Exception ignored in` announces did not end the program.
            if before := self._before:
                logged = "torch/" not in before.source and (before.level == "E" or _LOGGED.match(before.text))
                reader.logged = before.text.startswith("Exception ignored in") or bool(logged)
        role = reader.feed(line.text, line.number)
        if reader.busy != self._busy:
            self._busy = any(other.busy for other in self._tracebacks.values())
        exception = reader.exceptions[-1] if role in ("exception", "message") else None
        return exception, role == "frame"

    def _add(
        self, line: Line, family: Family, fields: dict[str, str], exception: PythonException | None
    ) -> None:
        if "what():" in line.text and any(
            error.family.id == "cuda_teardown"
            and error.process == line.process
            and line.number - error.line <= 5
            for error in self._errors.values()
        ):
            # The `terminate` text that follows a failed destructor of the model.
            family, fields = BY_ID["cuda_teardown"], {"status": line.text.strip()}
        stable = tuple(value for name, value in fields.items() if name not in _VOLATILE)
        key = (family.id, line.process, stable)
        self._latest[line.process] = (key, line.number)
        if key in self._errors:
            self._counts[key] += 1
            if exception is not None and self._errors[key].exception is None:
                self._errors[key] = replace(self._errors[key], exception=exception)
            return
        if len(self._errors) >= MAX_ERRORS:  # make room: drop the last error of the lowest rank
            self._dropped += 1
            lowest = min(reversed(self._errors), key=lambda key: self._errors[key].rank)
            if self._errors[lowest].rank >= family.rank:
                return
            del self._errors[lowest], self._counts[lowest]
        fields = {name: bound(value, 300) for name, value in fields.items()}
        self._counts[key] = 1
        self._errors[key] = ErrorFact(
            family, fields, line.number, bound(line.text), family.candidates, 1, line.process, exception
        )

    def facts(self) -> LogFacts:
        """Close the stream and assemble the facts."""
        readers = self._tracebacks.values()
        for reader in readers:
            reader.finish()
        exceptions = sorted(
            (one for reader in readers for one in reader.exceptions), key=lambda one: one.line
        )
        threads = tuple(thread for reader in readers for thread in reader.threads)
        errors = [replace(error, count=self._counts[key]) for key, error in self._errors.items()]
        unnamed = unnamed_exception(errors, exceptions)
        errors += [unnamed] if unnamed is not None else []
        errors = sorted((settle_exception(error) for error in errors), key=lambda error: error.line)
        sanitizer = self._sanitizer.report() if self._sanitizer.seen else None
        if sanitizer is not None:
            errors = [*sanitizer_errors(sanitizer, self._sanitizer_line), *errors]
        root = choose_root(errors, exceptions)
        open_since = max((reader.open_since for reader in readers if not reader.headless), default=0)
        return LogFacts(
            root=refine(root, errors, threads) if root else None,
            errors=tuple(errors),
            exceptions=tuple(exceptions),
            threads=threads,
            sanitizer=sanitizer,
            last_launch=max(self._open_launches.values(), key=lambda launch: launch.line, default=None),
            launches=self._launched,
            locations=tuple(self._details.locations),
            versions=self._details.versions,
            processes=tuple(self._processes),
            lines=self._lines,
            dropped_errors=self._dropped,
            truncated=f"the traceback of line {open_since} has no last line" if open_since else self._cut,
            best_lines=tuple(self._best),
            tail=tuple(self._tail),
        )


LONGEST_LINE = 1 << 16
ALLOWED = "a text file that has an end, such as what a run printed"

# The kernel makes the contents of these files when they are read: their size and end mean nothing.
_KERNEL_FILES = (Path("/proc"), Path("/sys"))


def read_log_file(path: Path) -> LogFacts:
    """Read a log file, about a GiB in a minute. Raise `ProblemError` if it cannot be a log."""
    return read_log(lines_of(path))


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines that a log file has now. A line also ends at a carriage return, or after 64 KiB."""
    with open_log(path) as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (line := file.readline(min(LONGEST_LINE, left))):
            left -= len(line)
            text = line.decode("utf-8", "replace").replace("\r\n", "\n")
            yield from text.removesuffix("\r").split("\r") if "\r" in text else (text,)


def open_log(path: Path) -> io.BufferedReader:
    """Open the file for reading without waiting for a writer. Raise ProblemError if it cannot be a log."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        what = f"cannot read the log: {error.strerror}"
        raise ProblemError(what, value=str(path), allowed=ALLOWED) from None
    found = os.fstat(fd)
    of_kernel = found.st_dev in {place.stat().st_dev for place in _KERNEL_FILES if place.exists()}
    if of_kernel or not stat.S_ISREG(found.st_mode):
        os.close(fd)
        what = "the log is a file under /proc or /sys" if of_kernel else "the log is not a regular file"
        raise ProblemError(what, value=str(path), allowed=ALLOWED)
    return os.fdopen(fd, "rb")
