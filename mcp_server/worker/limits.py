"""Limits of the process: on open files and the size of a file, with errors of any text, and on its time."""

from __future__ import annotations

import errno
import os
import resource
from typing import Optional


def process_limits() -> dict[str, int]:
    """`no_files`: the limit on open files, once reached; `file_bytes`: that on the size of a file, if any."""
    return {**_no_files(), **_file_bytes()}


def processor_seconds() -> Optional[int]:
    """Seconds of processor time after which the process is killed (SIGXCPU, at a hard limit SIGKILL)."""
    limit = resource.getrlimit(resource.RLIMIT_CPU)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _no_files() -> dict[str, int]:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return {"no_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
    return {}


def _file_bytes() -> dict[str, int]:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return {} if limit == resource.RLIM_INFINITY else {"file_bytes": limit}
