"""What the worker reports: JSON lines that survive its death, failures, and its rank."""

from __future__ import annotations

import json
import linecache
import math
import os
import time
import traceback
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the hook imports this file into every process
    from .protocol import ErrorFacts


def plain(value: Any) -> Any:
    """`value` as strict JSON: non-finite numbers become the strings `nan`, `inf` and `-inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return repr(value)


class Encoded(str):
    """JSON text, to be written as it is."""


def encode(value: Any) -> str:
    """`value` as JSON text; see `plain`. Short ways for what most events hold."""
    kind = type(value)
    if kind is Encoded:
        return str.__str__(value)
    if kind is int:
        return int.__repr__(value)
    if kind is str:
        return encode_basestring_ascii(value)
    if kind is float and math.isfinite(value):
        return float.__repr__(value)
    if value is None or value == []:
        return "null" if value is None else "[]"
    return json.dumps(plain(value), allow_nan=False)


_STRICT = json.JSONEncoder(allow_nan=False).encode


class Report:
    """An append-only file. Every event is one `write` call of its own: no buffer is lost in an abort."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.start = time.monotonic()
        self.last = ""

    def event(self, event: str, **facts: Any) -> None:
        """Append one event; `t` is seconds since the worker began."""
        self.last = event
        record = {"event": event, "t": round(time.monotonic() - self.start, 4), **facts}
        try:
            line = _STRICT(record)  # most records are strict JSON as they are
        except (TypeError, ValueError):
            line = _STRICT(plain(record))
        os.write(self.file, (line + "\n").encode("utf-8", "replace"))


TEXT_LIMIT = 20_000  # characters of one exception text
FRAME_LIMIT = 60


class Refused(Exception):
    """The request itself is wrong: nothing of the workload ran."""

    def __init__(self, what: str, value: object = None, allowed: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.value = value
        self.allowed = allowed


def facts(error: BaseException) -> ErrorFacts:
    """Type, text and frames of `error`, outermost first, and of what caused it."""
    cause = error.__cause__ or error.__context__
    return {
        "type": "{}.{}".format(type(error).__module__, type(error).__qualname__),
        "text": str(error)[:TEXT_LIMIT],
        "frames": [
            {
                "file": frame.filename,
                "line": frame.lineno,
                "function": frame.name,
                "code": linecache.getline(frame.filename, frame.lineno or 0).strip()[:300],
            }
            for frame in traceback.extract_tb(error.__traceback__)[-FRAME_LIMIT:]
        ],
        "cause": "" if cause is None else "{}: {}".format(type(cause).__qualname__, cause)[:TEXT_LIMIT],
    }


# As torchrun, srun, Open MPI and MPICH number them; the first is how torchrun labels the lines of a process.
VARIABLES = ("LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
PIDS = 1 << 22  # no process id is as large (PID_MAX_LIMIT of linux/threads.h)


def rank() -> str:
    """The rank, in digits; empty without a launcher of ours."""
    if "AOTI_DEBUG_LAUNCHED" not in os.environ:
        return ""
    return next(filter(str.isdigit, (os.environ.get(name, "") for name in VARIABLES)), "")


def identity() -> int:
    """The process id; with the rank above it, since processes on several nodes may have the same."""
    return os.getpid() + PIDS * int(rank() or "0")
