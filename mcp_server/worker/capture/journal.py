"""Writes the journal of a capture, one file per process, and the files that it names; wraps functions.

Events are ordered by `n`. When the journal is full, events go to one of two small files (tails), in turn, so
that the latest calls of a long-running server are still available.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Generator, Mapping, Optional

import torch

from ..report import encode, identity, rank

if TYPE_CHECKING:  # this is imported into every program
    from ..protocol import KeptPackage

FULL = 16 << 20  # bytes of a journal before it continues in the two tails
TAIL = 2 << 20  # bytes of one tail


class Journal:
    """Appends events to the file of this process. A forked child starts its own file."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.lock = threading.Lock()
        self.pid = -1
        self.file = -1
        self.count = 0
        self.written = 0
        self.paused = False  # whether the hook, not the program, is compiling and calling

    def event(self, event: str, **facts: object) -> None:
        """Write one event. The first event starts the journal, with the event `process`.

        `logs/captured.py` has a class for each event, with the meanings of its fields.
        """
        with self.lock:
            if self.pid != os.getpid():
                self._start()
            self._write(event, facts)

    def _start(self) -> None:
        self.pid = os.getpid()
        self.count = self.written = 0
        self.file = self._open("", os.O_APPEND)
        argv, python = list(getattr(sys, "orig_argv", sys.argv)), sys.version.split()[0]
        process = {"rank": rank(), "parent": os.getppid(), "argv": argv, "python": python, "cwd": os.getcwd()}
        self._write("process", process)

    def _open(self, part: str, flag: int) -> int:
        path = os.path.join(self.directory, "capture-{}{}.jsonl".format(identity(), part))
        return os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)

    def _write(self, event: str, facts: Mapping[str, object]) -> None:
        self.count += 1
        begin = '{{"event": "{}", "n": {}, "pid": {}, "t": {!r}'.format(
            event, self.count, identity(), time.time()
        )
        members = ['"{}": {}'.format(name, encode(value)) for name, value in facts.items()]
        line = (", ".join([begin, *members]) + "}\n").encode("utf-8", "replace")
        if self.written + len(line) > FULL:
            # Begin a tail when the journal, or the tail in use, is full.
            size = len(line)
            after = max(0, self.written - FULL)
            if self.written <= FULL or (after + size) // TAIL != after // TAIL:
                os.close(self.file)
                self.file = self._open(".tail{}".format((after + size) // TAIL % 2), os.O_TRUNC)
        self.written += len(line)
        os.write(self.file, line)


DEFAULT_CAP = 1 << 30  # limit of one saved call, update or program; AOTI_DEBUG_CAPTURE_CAP overrides it
KEPT = 2  # latest calls of each load whose inputs are kept, whatever their size
LATEST = 32  # latest calls of each load whose inputs are kept within BYTES
FIRST = 32  # first calls whose inputs are kept within BYTES, since a check may follow all calls
BYTES = 128 << 20  # limit for all inputs of the first calls, and for all of the latest
ODD = 4  # calls whose inputs are kept because outputs are not finite or not readable
COPY = 256 << 20  # a larger package is linked, not copied

_torch_save = torch.save


class CaptureStore:
    """Saves files into the journal's directory."""

    def __init__(self, journal: Journal) -> None:
        self.directory = journal.directory
        self.cap = int(os.environ.get("AOTI_DEBUG_CAPTURE_CAP") or DEFAULT_CAP)
        self.forget()

    def forget(self) -> None:
        """Reset in a forked child, which must not delete what its parent keeps."""
        self.finished: dict[int, deque[tuple[str, int]]] = {}
        self.latest_bytes = self.first = self.first_bytes = self.odd = 0

    def save(self, kind: str, number: int, record: Any) -> str:
        """Write `record` with torch.save to a new file; `number` makes its name unique in the process."""
        path = os.path.join(self.directory, "{}-{}-{}.pt".format(kind, identity(), number))
        _torch_save(record, path)
        return path

    def evict(self, path: str | None, load: int, odd: bool) -> None:
        """Keep the inputs of the first, latest and first `odd` calls. Delete those of other calls."""
        if path is None:
            return
        if odd and self.odd < ODD:
            self.odd += 1
            return
        size = os.path.getsize(path)
        if self.first < FIRST and self.first_bytes + size <= BYTES:
            self.first += 1
            self.first_bytes += size
            return
        kept = self.finished.setdefault(load, deque())
        kept.append((path, size))
        self.latest_bytes += size
        while len(kept) > KEPT and (len(kept) > LATEST or self.latest_bytes > BYTES):
            oldest, freed = kept.popleft()
            self.latest_bytes -= freed
            os.unlink(oldest)

    def package(self, path: str) -> KeptPackage:
        """Copy the package, or hard-link it if it is large or the copy fails (RLIMIT_FSIZE)."""
        facts = unkept(os.path.getsize(path))
        why = "larger than is copied, and on another disk"
        if facts["bytes"] <= COPY:
            facts["sha256"] = sha256(path)
            try:
                return {**facts, "copy": self._copied(path, facts["sha256"])}
            except OSError as error:
                why = str(error)
        # A hard link keeps the file if it is removed, but not if it is rewritten in place.
        state = os.stat(path)
        link = self._named(path, "{}-{}".format(state.st_dev, state.st_ino))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(path, link)
            return {**facts, "copy": link}
        except OSError:
            facts["notice"] = why
        return facts

    def _named(self, path: str, key: str) -> str:
        """Make a directory for the package, and return the path of its copy there."""
        directory = os.path.join(self.directory, "package-" + key)
        os.makedirs(directory, exist_ok=True)
        return os.path.join(directory, os.path.basename(path))

    def _copied(self, path: str, content: str) -> str:
        copy = self._named(path, content[:16])
        if not os.path.exists(copy):
            partial = "{}.partial-{}".format(copy, identity())  # other ranks may keep the same package
            try:
                shutil.copyfile(path, partial)
                os.replace(partial, copy)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(partial)
        return copy


def unkept(size: int, notice: str = "") -> KeptPackage:
    return {"bytes": size, "sha256": "", "copy": None, "notice": notice}


def sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


DONE = object()  # marks a hook that ended before the call
Ending = Generator[None, tuple[Any, Optional[BaseException]], None]
Hook = Callable[..., Optional[Ending]]
"""Gets the arguments of a function before the call. A generator continues at its `yield`, which returns the
call's result and error. A plain function, or a generator that has ended, does nothing after the call.
"""


def safely(journal: Journal, function: Callable[..., Any], *args: Any, where: str = "") -> Any:
    """Call the hook's own code. Journal any exception under `where`, and do not let it propagate."""
    try:
        return function(*args)
    except Exception as error:
        with contextlib.suppress(Exception):  # even a full disk must not stop the program
            text = "{}: {}".format(type(error).__name__, error)
            journal.event("hook_failed", where=where or function.__name__, error=text)
        return None


def around(journal: Journal, original: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    """Wrap a function with a hook around its calls."""
    where = getattr(hook, "func", hook).__name__  # a `partial` has no name

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ending = None if journal.paused else safely(journal, _begin, hook, args, kwargs, where=where)
        if ending is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            safely(journal, _end, ending, None, error, where=where)
            raise
        safely(journal, _end, ending, result, None, where=where)
        return result

    wrapper.__aoti_debug__ = True  # type: ignore[attr-defined]
    return wrapper


def _begin(hook: Hook, args: Any, kwargs: Any) -> Ending | None:
    """Start a hook; return what is left to do after the call, or None."""
    ending = hook(*args, **kwargs)
    return None if ending is None or next(ending, DONE) is DONE else ending


def _end(ending: Ending, result: Any, error: BaseException | None) -> None:
    with contextlib.suppress(StopIteration):
        ending.send((result, error))


def wrap(journal: Journal, owner: Any, name: str, hook: Hook) -> None:
    """Replace `owner.name` once; an owner without this attribute stays unchanged."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, "__aoti_debug__"):
        setattr(owner, name, around(journal, original, hook))
