"""A content-addressed cache of rebuilt packages, and the digests that address it.

Of several processes that need an entry, one builds it.

Layout: `<root>/<key>/` contains `package.pt2` and `manifest.json`; `<key>.lock` is locked during a build;
`<key>.building/` is the work directory, which the next sweep removes if its builder died.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from mcp_server.jobs.store import flock, open_lock, try_lock
from mcp_server.package.members import DirectoryContainer

SIZE_CAP = 8 << 30  # bytes
IN_USE_S = 600.0  # younger entries may be in use, and stay
POLL_S = 0.02
CHUNK = 1 << 20  # bytes that are read at once

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
        """Lock `key` against other tasks and processes; `on_wait` is called if another builder has it."""
        descriptor = open_lock(self.root / f"{key}.lock")
        try:
            if not flock(descriptor):
                on_wait("waiting for another process that builds the same")
                while not flock(descriptor):
                    await anyio.sleep(POLL_S)
            yield
        finally:
            os.close(descriptor)

    async def built(
        self, key: str, build: Callable[[Path], Awaitable[None]], on_progress: Callable[[str], None]
    ) -> tuple[Path, bool]:
        """The entry of `key`, and whether it was there; else `build` fills it, with its manifest."""
        async with self.locked(key, on_progress):
            entry = self.find(key)
            if entry is not None:
                return entry, True
            work = self.building(key)
            await build(work)
            return self.finish(key, work), False

    def sweep(self) -> None:
        """Remove abandoned work, then the least recently used entries until the rest fits the cap."""
        for work in self.root.glob("*.building"):
            with suppress(OSError):
                lock = try_lock(work.with_suffix(".lock"))
                if lock is not None:  # a builder has the lock for as long as it lives
                    shutil.rmtree(work, ignore_errors=True)
                    os.close(lock)
        entries = [path for path in self.root.iterdir() if _KEY.fullmatch(path.name)]
        total = 0
        for entry in sorted(entries, key=lambda e: e.stat().st_mtime, reverse=True):
            total += sum(f.stat().st_size for f in entry.iterdir() if f.is_file())
            if total > self.cap and time.time() - entry.stat().st_mtime > IN_USE_S:
                shutil.rmtree(entry, ignore_errors=True)


def digest_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_file_cached(path: Path, directory: Path) -> str:
    """`digest_file`, kept until size, time or inode change: hashing gigabytes of weights takes seconds."""
    facts = path.stat()
    known = directory / digest_values([str(path.resolve()), facts.st_size, facts.st_mtime_ns, facts.st_ino])
    if not known.exists():
        digest = digest_file(path)
        directory.mkdir(exist_ok=True)
        partial = known.with_suffix(f".{os.getpid()}")
        partial.write_text(digest)
        partial.replace(known)
    return known.read_text()


def digest_package(path: Path, directory: Path) -> str:
    """SHA-256 of a package: of the file, or of the names and contents of a directory."""
    if path.is_file() and path.suffix != ".so":
        return digest_file_cached(path, directory)
    root = path if path.is_dir() else path.parent
    members = DirectoryContainer(root).members
    return digest_values({m.name: digest_file(root / m.name) for m in members})


def digest_values(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
