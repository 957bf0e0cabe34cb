"""The capture's journal: one file per process, plus the files that its events name.

Events are ordered by `n`. When the journal is full, calls go on into two small files that take turns, so
that the latest calls of a long-running server are still there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from .ranks import identity, rank
from .report import encode

FULL = 16 << 20  # bytes of a journal before it goes on in the two tails
TAIL = 2 << 20  # bytes of one tail


class Journal:
    """Appends with `os.write`. A forked child gets a journal of its own.

    Events and files carry `ranks.identity()` as their process id.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.lock = threading.Lock()
        self.pid = -1
        self.file = -1
        self.count = 0
        self.written = 0

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def event(self, event: str, **facts: Any) -> None:
        """Write one event. It starts the journal, with the event `process`, when this is the first."""
        with self.lock:
            if self.pid != os.getpid():
                self._start()
            self._write(event, facts)

    def _start(self) -> None:
        self.pid = os.getpid()
        self.count = self.written = 0
        self.file = self._open("capture-{}.jsonl".format(identity()), os.O_APPEND)
        self._write(
            "process",
            {
                "rank": rank(),
                "parent": os.getppid(),
                "argv": list(getattr(sys, "orig_argv", sys.argv)),
                "executable": sys.executable,
                "python": sys.version.split()[0],
                "cwd": os.getcwd(),
            },
        )

    def _open(self, name: str, flag: int) -> int:
        return os.open(self.path(name), os.O_WRONLY | os.O_CREAT | flag, 0o600)

    def _write(self, event: str, facts: dict[str, Any]) -> None:
        self.count += 1
        begin = '{{"event": "{}", "n": {}, "pid": {}, "t": {!r}'.format(
            event, self.count, identity(), time.time()
        )
        members = ['"{}": {}'.format(name, encode(value)) for name, value in facts.items()]
        line = (", ".join([begin, *members]) + "}\n").encode("utf-8", "replace")
        if self.written + len(line) > FULL:
            self._turn(len(line))
        self.written += len(line)
        os.write(self.file, line)

    def _turn(self, size: int) -> None:
        """Begin a tail when the journal, or the tail in use, is full."""
        after = max(0, self.written - FULL)
        if self.written <= FULL or (after + size) // TAIL != after // TAIL:
            os.close(self.file)
            turn = (after + size) // TAIL % 2
            self.file = self._open("capture-{}.tail{}.jsonl".format(identity(), turn), os.O_TRUNC)
