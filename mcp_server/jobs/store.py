"""The files of jobs: private directories with locks, and a store with a cap on the total size."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from mcp_server.errors import ProblemError, read_json

PRIVATE = 0o700
ANOTHER_STATE = "set AOTI_DEBUG_STATE to a directory of yours that has room and can be written"

_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.ENAMETOOLONG: "the path is too long",
}


def cause(error: OSError) -> str:
    return _CAUSES.get(error.errno or 0, error.strerror or type(error).__name__)


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an OSError below `path` into a ProblemError that says what to do."""
    try:
        yield
    except OSError as error:
        raise ProblemError(
            f"cannot store a job: {cause(error)}", value=str(path), next_call=ANOTHER_STATE
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file completely, or leave the existing one unchanged. Raise OSError if the write fails."""
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def private_directory(path: Path) -> Path:
    """Create `path` (mode 0700), or accept an existing directory that only this user can write.

    An existing directory keeps its mode, since the user may share it for reading. Raise ProblemError for a
    link, for a directory that another user owns or can write, or if the directory cannot be created.
    """
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=PRIVATE)
            return path
        except FileExistsError:
            found = path.lstat()
    what = ""
    if not stat.S_ISDIR(found.st_mode):
        what = "not a directory, or a link to one"
    elif found.st_uid != os.getuid():
        what = "the directory belongs to another user"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        what = "others may write the directory"
    if what:
        raise ProblemError(what, value=str(path), next_call=ANOTHER_STATE)
    return path


def open_lock(path: Path) -> int:
    """Open a lock file without following links. A lock ends when the last copy of its descriptor closes."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def flock(fd: int) -> bool:
    """Lock an open file. False if another descriptor holds the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock(path: Path) -> int | None:
    """Lock `path` and return the descriptor. None if it is already locked, even by this process."""
    fd = open_lock(path)
    if flock(fd) and is_current(fd, path):
        return fd
    os.close(fd)
    return None


def is_current(fd: int, path: Path) -> bool:
    """Whether `fd` is still the file at `path`, which a cleaner of old files may have removed."""
    try:
        return os.fstat(fd).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock `path` for the body. This blocks the event loop, so keep the body short."""
    fd = open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


ROOM_BYTES = 64 << 10  # enough for the files of a small job
SCHEME = "aoti-debug://jobs/"

_JOB_ID = re.compile(r"job_[0-9a-f]{8}")
_DOOMED = "doomed-"


def state_root() -> Path:
    """AOTI_DEBUG_STATE, XDG_STATE_HOME/aoti-debug or ~/.local/state/aoti-debug."""
    if asked := os.environ.get("AOTI_DEBUG_STATE"):
        return Path(asked).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME", "")
    # The XDG base directory specification says to ignore relative paths.
    home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return home / "aoti-debug"


@dataclass(frozen=True)
class JobDirectory:
    """A job's folder. `lock` is the running lock if this server runs the job; otherwise None."""

    id: str
    path: Path
    kind: str
    number: int
    lock: int | None = field(default=None, compare=False)

    def release(self) -> None:
        """Mark the job as ended. From now on a sweep may remove its folder."""
        if self.lock is not None:
            os.close(self.lock)
            object.__setattr__(self, "lock", None)


TEMPORARY = "tmp"  # the folder in a job for its workers' temporary files


class Store:
    """The job folders of all servers that use the same state directory."""

    cap_bytes = 4 << 30
    cap_jobs = 500
    keep = 4  # the newest jobs stay, whatever their size: their results may not have been fetched

    def __init__(self, root: Path | None = None) -> None:
        self.root = private_directory(root or state_root())
        self.jobs = private_directory(self.root / "jobs")

    def create(self, kind: str) -> JobDirectory:
        """Create an empty folder, locked as running. Raise ProblemError if that fails."""
        with storing(self.jobs), locked(self.root / "store.lock"):
            # The order of jobs does not depend on the system clock, which may be set back.
            counter = self.root / "counter"
            try:
                number = int(counter.read_text()) + 1
            except (FileNotFoundError, ValueError):
                number = 1 + max((read_metadata(path)[1] for path in self.jobs.iterdir()), default=0)
            counter.write_text(str(number))
            while (path := self.jobs / f"job_{secrets.token_hex(4)}").exists():
                pass
            path.mkdir(mode=PRIVATE)
            lock = None
            try:
                lock = try_lock(path / "running.lock")
                (path / "job.json").write_text(json.dumps({"kind": kind, "number": number}))
            except OSError:  # the disk may be full: leave no incomplete job
                shutil.rmtree(path, ignore_errors=True)
                if lock is not None:
                    os.close(lock)
                raise
        return JobDirectory(path.name, path, kind, number, lock)

    def check_room(self) -> None:
        """Raise ProblemError if not even the files of a small job can be written."""
        with storing(self.jobs), tempfile.TemporaryFile(dir=self.root, buffering=0) as file:
            file.write(bytes(ROOM_BYTES))

    def reopen(self, job_id: str) -> JobDirectory:
        """Lock the folder of an ended job, to continue it. Raise ProblemError if it is unknown or runs."""
        found = self.find(job_id)
        with storing(self.jobs), locked(self.root / "store.lock"):
            lock = try_lock(found.path / "running.lock")
        if lock is None:
            raise ProblemError("the job still runs", value=job_id, next_call="wait for its end, or stop it")
        return replace(found, lock=lock)

    def find(self, job_id: str) -> JobDirectory:
        """The folder of a job. Raises ProblemError for a malformed or unknown handle."""
        if not _JOB_ID.fullmatch(job_id):
            raise ProblemError("not a job handle", value=job_id, allowed="job_ and 8 hexadecimal digits")
        path = self.jobs / job_id
        if path.is_symlink() or not path.is_dir():
            raise ProblemError(
                "no such job; it never ran on this machine, or was removed to make room",
                value=job_id,
                next_call="diagnose the workload again",
            )
        kind, number = read_metadata(path)
        return JobDirectory(job_id, path, kind, number)

    def ids(self) -> list[str]:
        """Handles of all jobs, oldest first."""
        return [path.name for path in self._by_age()]

    def is_running(self, job: JobDirectory) -> bool:
        if job.lock is not None:
            return True
        lock = try_lock(job.path / "running.lock")
        if lock is not None:
            os.close(lock)
        return lock is None

    def path_of(self, uri: str) -> Path:
        """The file behind an artifact's address.

        Raise ProblemError for another scheme, for a path outside the job's folder (by `..` or by a link that
        the workload created), or if no regular file is there.
        """
        job_id, slash, relative = uri.removeprefix(SCHEME).partition("/")
        if not uri.startswith(SCHEME) or not slash or "\0" in unquote(relative):
            raise ProblemError("not an artifact", value=uri, allowed=f"{SCHEME}JOB_ID/PATH")
        root = self.find(job_id).path.resolve()
        try:
            path = (root / unquote(relative)).resolve()
            found = path.is_file()
        except OSError as error:  # the name is too long, or there are too many links
            raise ProblemError(f"not the path of an artifact ({error.strerror})", value=uri[:300]) from None
        if not path.is_relative_to(root):
            raise ProblemError("the path leaves the job's directory", value=uri)
        if not found:
            raise ProblemError("the job left no such file", value=uri)
        return path

    def sweep(self) -> list[str]:
        """Remove the oldest jobs until both caps hold, but no running or new ones. Return their handles."""
        with storing(self.jobs), locked(self.root / "store.lock"):
            sizes = {path: size_of(path) for path in self._by_age()}
            total, count = sum(sizes.values()), len(sizes)
            swept = []
            for path in list(sizes)[: max(0, count - self.keep)]:
                if total <= self.cap_bytes and count <= self.cap_jobs:
                    break
                if not self.is_running(self.find(path.name)):
                    total, count = total - sizes[path], count - 1
                    path.rename(self.jobs / f"{_DOOMED}{path.name}")
                    swept.append(path.name)
            # Remove what loaders unpacked for jobs whose process was killed.
            left = [path for path in self._by_age() if (path / TEMPORARY).exists()]
            for path in left:
                if not self.is_running(self.find(path.name)):
                    shutil.rmtree(path / TEMPORARY, ignore_errors=True)
        for path in self.jobs.glob(f"{_DOOMED}*"):
            shutil.rmtree(path, ignore_errors=True)
        return swept

    def _by_age(self) -> list[Path]:
        found = [path for path in self.jobs.iterdir() if _JOB_ID.fullmatch(path.name) and path.is_dir()]
        return sorted(found, key=lambda path: read_metadata(path)[1])


def read_metadata(path: Path) -> tuple[str, int]:
    """Kind and number of the job in a folder; ("", 0) if its record was never completely written."""
    try:
        record = read_json((path / "job.json").read_bytes())
        return str(record["kind"]), int(record["number"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0


def size_of(path: Path) -> int:
    """Count bytes on disk below a folder, without following links. Files that vanish meanwhile count as 0."""
    total = 0
    with suppress(OSError), os.scandir(path) as listing:
        for entry in listing:
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    total += size_of(Path(entry.path))
    return total
