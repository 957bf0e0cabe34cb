"""A content-addressed cache of rebuilt packages, and the digests that address it.

If several processes need an entry, only one builds it.

Layout: `<root>/<key>/` contains `package.pt2` and `manifest.json`; `<key>.lock` is locked during a build;
`<key>.building/` is the work directory. If the builder died, the next sweep removes that directory.
"""

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio

from mcp_server.jobs.store import flock, open_lock, try_lock
from mcp_server.package.members import DirectoryContainer

SIZE_CAP = 8 << 30  # bytes
IN_USE_S = 600.0  # younger entries may be in use and are kept
POLL_S = 0.02
CHUNK = 1 << 20  # bytes read at once

_KEY = re.compile(r"[0-9a-f]{64}")
MANIFEST = "manifest.json"


def default_root() -> Path:
    """AOTI_DEBUG_CACHE, or the user's cache directory."""
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

    async def built(
        self, key: str, build: Callable[[Path], Awaitable[None]], on_wait: Callable[[str], None]
    ) -> tuple[Path, bool]:
        """The entry of `key`, and whether it existed. If not, `build` creates its files and manifest.

        A lock, which ends with its process, keeps other tasks and processes from building the same entry.
        """
        entry, work = self.root / key, self.root / f"{key}.building"
        lock = open_lock(self.root / f"{key}.lock")
        try:
            if not flock(lock):
                on_wait("waiting for another process that builds the same")
                while not flock(lock):
                    await anyio.sleep(POLL_S)
            if (entry / MANIFEST).exists():
                os.utime(entry)
                return entry, True
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            await build(work)
            shutil.rmtree(entry, ignore_errors=True)
            work.rename(entry)
            self.sweep()
            return entry, False
        finally:
            os.close(lock)

    def sweep(self) -> None:
        """Remove abandoned work, then the least recently used entries until the rest fits the cap."""
        for work in self.root.glob("*.building"):
            with suppress(OSError):
                lock = try_lock(work.with_suffix(".lock"))
                if lock is not None:  # a builder holds the lock for as long as it lives
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
    """`digest_file` with a cache by size, time and inode: hashing gigabytes of weights takes seconds."""
    facts = path.stat()
    known = directory / digest_values([str(path.resolve()), facts.st_size, facts.st_mtime_ns, facts.st_ino])
    if not known.exists():
        digest = digest_file(path)
        directory.mkdir(exist_ok=True)
        partial = known.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        partial.write_text(digest)
        partial.replace(known)
    return known.read_text()


def digest_package(path: Path, directory: Path) -> str:
    """The SHA-256 of a package: of its file, or of the names and contents in its directory."""
    if path.is_file() and path.suffix != ".so":
        return digest_file_cached(path, directory)
    root = path if path.is_dir() else path.parent
    members = DirectoryContainer(root).members
    return digest_values({m.name: digest_file(root / m.name) for m in members})


def digest_values(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
