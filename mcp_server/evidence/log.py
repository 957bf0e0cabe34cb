"""Reads a log as a stream: the errors in it, the one that is the cause, and where it points.

Memory is bounded whatever the log's size: repeated texts are counted, not kept.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from mcp_server.evidence.details import Details
from mcp_server.evidence.facts import ErrorFact, LogFacts, PythonException
from mcp_server.evidence.families import BY_ID, Family, Rank, find_family
from mcp_server.evidence.launches import LaunchTracker
from mcp_server.evidence.raised import settle_exception, unnamed_exception
from mcp_server.evidence.roots import choose_root, refine, sanitizer_errors
from mcp_server.evidence.sanitizer import SanitizerReader
from mcp_server.evidence.sanitizer_lines import MARK, is_record
from mcp_server.evidence.scout import NOTHING, Look, Scout
from mcp_server.evidence.text import Line, bound, read_line
from mcp_server.evidence.traceback import TracebackReader

BATCH = 256
MAX_ERRORS = 200
MAX_PROCESSES = 64
TAIL = 15
MAX_BEST = 20

_Key = tuple[str, str, tuple[str, ...]]

_VOLATILE = frozenset({"block", "thread"})
_WARNING = re.compile(r"[:\s]\w*Warning: ")
_CUT = re.compile(
    r"(?:\[|<|\.\.\.|…) ?(?:(?:output|log|Output|Log) )?"
    r"(?:truncated|\d+ (?:more )?(?:lines|characters|bytes) (?:omitted|truncated|skipped|elided))"
)


_LOGGED = re.compile(r".{0,60}?\b(?:ERROR|CRITICAL)\b")


def _is_logged(before: Line) -> bool:
    """Whether the exception below this line was caught: the program logged it, or Python passed it over."""
    if before.text.startswith("Exception ignored in"):
        return True
    own = "torch/" not in before.source
    return own and (before.level == "E" or _LOGGED.match(before.text) is not None)


def read_log(lines: Iterable[str], process: str = "") -> LogFacts:
    """Read a log, one string a line (with or without its newline), and say what it holds.

    With `process`, lines that name another process count as empty.
    """
    return read_parts([(1, lines)], process)


def read_parts(parts: Iterable[tuple[int, Iterable[str]]], process: str = "") -> LogFacts:
    """Read a log of which parts are left out: of each part the number of its first line, and its lines."""
    reader = _Reader()
    for first, lines in parts:
        for batch in _batches(lines, first):
            reader.read([_only(process, line) for line in batch] if process else batch)
    return reader.facts()


def _only(process: str, line: Line) -> Line:
    return line if line.process in ("", process) else Line(line.number, "", "", "", "")


def _batches(lines: Iterable[str], first: int) -> Iterator[list[Line]]:
    numbered = enumerate(lines, start=first)
    while batch := [read_line(raw, number) for number, raw in islice(numbered, BATCH)]:
        yield batch


class _Reader:
    """The state of one pass over a log."""

    def __init__(self) -> None:
        self._errors: dict[_Key, ErrorFact] = {}
        self._counts: dict[_Key, int] = {}
        self._latest: dict[str, tuple[_Key, int]] = {}
        self._tracebacks: dict[str, TracebackReader] = {}
        self._busy = False
        self._before: Line | None = None
        self._scout = Scout()
        self._sanitizer = SanitizerReader()
        self._sanitizer_line = 0
        self._launches = LaunchTracker()
        self._details = Details()
        self._tail: deque[tuple[int, str]] = deque(maxlen=TAIL)
        self._best: list[tuple[int, str]] = []
        self._processes: dict[str, None] = {}
        self._lines = self._characters = self._dropped = 0
        self._cut = ""

    def read(self, batch: list[Line]) -> None:
        """Take a few hundred lines; on each only what its template can hold is looked for."""
        for before, line, look in zip([self._before, *batch], batch, self._scout.looks(batch), strict=False):
            self._before = before
            if line.text.startswith(MARK):
                self._sanitizer.feed(line.text)
                if not self._sanitizer_line and is_record(line.text[len(MARK) :].strip()):
                    self._sanitizer_line = line.number
            elif look is not NOTHING or self._busy:
                self._read_line(line, look)
        self._read_processes(batch)
        self._before = batch[-1]
        self._lines = batch[-1].number
        self._characters += sum(len(line.text) + 1 for line in batch)
        self._tail.extend((line.number, bound(line.text, 300)) for line in batch[-TAIL:] if line.text.strip())

    def _read_processes(self, batch: list[Line]) -> None:
        for process in {line.process for line in batch if line.process}:
            if len(self._processes) < MAX_PROCESSES:
                self._processes[process] = None

    def _read_line(self, line: Line, look: Look) -> None:
        if look.launches and self._launches.feed(line):
            return
        exception, in_frames = self._trace(line, look.traceback)
        if in_frames:
            return
        if look.details:
            self._read_details(line)
        if look.cut and not self._cut and _CUT.search(line.text):
            self._cut = f"line {line.number} says that text was left out"
        matched = bool(look.families) and self._match(line, look.families, exception)
        if look.suspicious and not matched and len(self._best) < MAX_BEST and not _WARNING.search(line.text):
            self._best.append((line.number, bound(line.text, 300)))

    def _trace(self, line: Line, begins: bool) -> tuple[PythonException | None, bool]:
        """The exception that this line belongs to, and whether it is only a frame of a traceback."""
        key = f"{line.process}|{line.source}"
        reader = self._tracebacks.get(key)
        if reader is None or not reader.busy:
            if not begins:
                return None, False
            reader = self._tracebacks.setdefault(self._bounded(key), TracebackReader(line.process))
            reader.logged = self._before is not None and _is_logged(self._before)
        role = reader.feed(line.text, line.number)
        if reader.busy != self._busy:
            self._busy = any(other.busy for other in self._tracebacks.values())
        exception = reader.exceptions[-1] if role in ("exception", "message") else None
        return exception, role == "frame"

    def _bounded(self, key: str) -> str:
        return key if len(self._tracebacks) < MAX_PROCESSES else next(iter(self._tracebacks))

    def _match(self, line: Line, families: tuple[Family, ...], exception: PythonException | None) -> bool:
        found = find_family(line.text, families)
        if found is None:
            return False
        family, fields = found
        if family.rank > Rank.CONSEQUENCE and _WARNING.search(line.text):
            return True
        if self._is_teardown(line):
            family, fields = BY_ID["cuda_teardown"], {"status": line.text.strip()}
        self._add(line, family, fields, exception)
        return True

    def _is_teardown(self, line: Line) -> bool:
        """Whether this is the text of the `terminate` that follows a failed destructor of the model."""
        if "what():" not in line.text:
            return False
        return any(
            error.family.id == "cuda_teardown"
            and error.process == line.process
            and line.number - error.line <= 5
            for error in self._errors.values()
        )

    def _add(
        self, line: Line, family: Family, fields: dict[str, str], exception: PythonException | None
    ) -> None:
        stable = tuple(value for name, value in fields.items() if name not in _VOLATILE)
        key = (family.id, line.process, stable)
        self._latest[line.process] = (key, line.number)
        if key in self._errors:
            self._counts[key] += 1
            if exception is not None and self._errors[key].exception is None:
                self._errors[key] = replace(self._errors[key], exception=exception)
            return
        if len(self._errors) >= MAX_ERRORS and not self._make_room(family.rank):
            self._dropped += 1
            return
        fields = {name: bound(value, 300) for name, value in fields.items()}
        self._counts[key] = 1
        self._errors[key] = ErrorFact(
            family, fields, line.number, bound(line.text), family.candidates, 1, line.process, exception
        )

    def _make_room(self, rank: Rank) -> bool:
        """Drop the last of the lowest errors if it is lower than `rank`."""
        lowest = min(reversed(self._errors), key=lambda key: self._errors[key].rank)
        if self._errors[lowest].rank >= rank:
            return False
        del self._errors[lowest], self._counts[lowest]
        self._dropped += 1
        return True

    def _read_details(self, line: Line) -> None:
        """Add what a following line says (kernel, operator, size of a difference) to the error before it."""
        fields = self._details.feed(line)
        latest = self._latest.get(line.process)
        if not fields or latest is None or line.number - latest[1] > 40:
            return
        error = self._errors.get(latest[0])
        if error is not None:
            self._errors[latest[0]] = replace(error, fields={**fields, **error.fields})

    def facts(self) -> LogFacts:
        """Close the stream and join what was found."""
        for reader in self._tracebacks.values():
            reader.finish()
        exceptions = sorted(
            (item for reader in self._tracebacks.values() for item in reader.exceptions),
            key=lambda item: item.line,
        )
        threads = tuple(item for reader in self._tracebacks.values() for item in reader.threads)
        errors = self._settled(exceptions)
        sanitizer = self._sanitizer.report() if self._sanitizer.seen else None
        if sanitizer is not None:
            errors = [*sanitizer_errors(sanitizer, self._sanitizer_line), *errors]
        root = choose_root(errors, exceptions)
        return LogFacts(
            root=refine(root, errors, threads) if root else None,
            errors=tuple(errors),
            exceptions=tuple(exceptions),
            threads=threads,
            sanitizer=sanitizer,
            last_launch=self._launches.open_launch(),
            launches=self._launches.finished,
            locations=self._details.locations(),
            versions=self._details.versions,
            processes=tuple(self._processes),
            lines=self._lines,
            characters=self._characters,
            dropped_errors=self._dropped,
            truncated=self._truncated(),
            best_lines=tuple(self._best),
            tail=tuple(self._tail),
        )

    def _settled(self, exceptions: list[PythonException]) -> list[ErrorFact]:
        """All errors in the order of lines, each in the family that its place gives it."""
        found = [replace(error, count=self._counts[key]) for key, error in self._errors.items()]
        unnamed = unnamed_exception(found, exceptions)
        found += [unnamed] if unnamed is not None else []
        return sorted((settle_exception(error) for error in found), key=lambda error: error.line)

    def _truncated(self) -> str:
        readers = [reader for reader in self._tracebacks.values() if not reader.headless]
        open_since = [reader.open_since for reader in readers if reader.open_since]
        if open_since:
            return f"the traceback of line {max(open_since)} has no last line"
        return self._cut
