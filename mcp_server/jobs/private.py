"""Directories that only this user can write, and file locks in them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcp_server.errors import ProblemError

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
    """The reason for the error, in words."""
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


def private_directory(path: Path) -> Path:
    """Create `path` (mode 0700), or accept an existing directory that only this user can write.

    An existing directory keeps its mode, since the user may share it for reading. Raises ProblemError for a
    link, for a directory that another user owns or can write, and if the directory cannot be created.
    """
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=PRIVATE)
        except FileExistsError:
            _check_ours(path)
    return path


def _check_ours(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ProblemError("not a directory, or a link to one", value=str(path), next_call=ANOTHER_STATE)
    if found.st_uid != os.getuid():
        raise ProblemError("the directory belongs to another user", value=str(path), next_call=ANOTHER_STATE)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ProblemError("others may write the directory", value=str(path), next_call=ANOTHER_STATE)


def open_lock(path: Path) -> int:
    """Open a lock file without following links. A lock ends when the last copy of the descriptor closes."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def try_lock(path: Path) -> int | None:
    """Lock `path` and return the descriptor; None if it is locked already, even by this process."""
    fd = open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_current(fd, path):
            return fd
    except BlockingIOError:
        pass
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
    """Lock `path` for the body. Blocks the event loop, so keep the body short."""
    fd = open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
