"""A content-addressed cache of rebuilt packages. Of several processes that need an entry, one builds it.

Layout: `<root>/<key>/` contains `package.pt2` and `manifest.json`; `<key>.lock` is locked during a build;
`<key>.building/` is the work directory, which the next sweep removes if its builder died.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

SIZE_CAP = 8 << 30  # bytes
IN_USE_S = 600.0  # younger entries may be in use, and stay
POLL_S = 0.02

_KEY = re.compile(r"[0-9a-f]{64}")
MANIFEST = "manifest.json"


def default_root() -> Path:
    """AOTI_DEBUG_CACHE, else the user's cache directory."""
    asked = os.environ.get("AOTI_DEBUG_CACHE")
    if asked:
        return Path(asked).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "aoti-debug" / "instrumented"


class Cache:
    """A directory of rebuilt packages with a size cap in bytes."""

    def __init__(self, root: Path | None = None, cap: int = SIZE_CAP) -> None:
        self.root = root or default_root()
        self.cap = cap
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def find(self, key: str) -> Path | None:
        """The finished entry of `key`; marks it as used."""
        entry = self.root / key
        if not (entry / MANIFEST).exists():
            return None
        os.utime(entry)
        return entry

    def building(self, key: str) -> Path:
        """An empty directory to build in. The caller has the lock."""
        work = self.root / f"{key}.building"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        return work

    def finish(self, key: str, work: Path) -> Path:
        """Turn the directory from `building` into the entry of `key`, and sweep."""
        entry = self.root / key
        shutil.rmtree(entry, ignore_errors=True)
        work.rename(entry)
        self.sweep()
        return entry

    @asynccontextmanager
    async def locked(self, key: str, on_wait: Callable[[str], None] = lambda _: None) -> AsyncIterator[None]:
        """Lock `key` against other tasks and processes for the body. The lock ends with its process.

        `on_wait` is called once if another builder has the lock.
        """
        descriptor = os.open(self.root / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _try_lock(descriptor):
                on_wait("waiting for another who builds the same")
                while not _try_lock(descriptor):
                    await anyio.sleep(POLL_S)
            yield
        finally:
            os.close(descriptor)

    def sweep(self) -> None:
        """Remove abandoned work, then the least recently used entries until the rest fits the cap."""
        for work in self.root.glob("*.building"):
            self._remove_abandoned(work)
        entries = sorted(self._entries(), key=lambda e: e.stat().st_mtime, reverse=True)
        total = 0
        for entry in entries:
            total += sum(f.stat().st_size for f in entry.iterdir() if f.is_file())
            if total > self.cap and time.time() - entry.stat().st_mtime > IN_USE_S:
                shutil.rmtree(entry, ignore_errors=True)

    def _entries(self) -> Iterator[Path]:
        return (path for path in self.root.iterdir() if _KEY.fullmatch(path.name))

    def _remove_abandoned(self, work: Path) -> None:
        """Remove `work` if its lock is free: a builder has the lock for as long as it lives."""
        with suppress(OSError):
            descriptor = os.open(
                self.root / f"{work.stem}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                if _try_lock(descriptor):
                    shutil.rmtree(work, ignore_errors=True)
            finally:
                os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
