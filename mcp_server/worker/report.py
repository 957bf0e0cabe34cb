"""The worker's report: JSON lines that survive its death, failures, and its rank."""

from __future__ import annotations

import json
import linecache
import math
import os
import time
from types import CodeType
from typing import TYPE_CHECKING, Any, Iterable, Mapping

from .capture.events import ErrorFacts, Frame

if TYPE_CHECKING:  # the hook imports this file into every process
    from .events import Event


def members(value: object) -> dict[str, object]:
    """The non-None fields of a dataclass in JSON form."""
    if not hasattr(value, "__dataclass_fields__"):
        raise TypeError(type(value))
    return {name: each for name, each in vars(value).items() if each is not None}


def plain(value: Any) -> Any:
    """`value` as strict JSON: non-finite numbers become the strings `nan`, `inf` and `-inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        value = members(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return repr(value)


class Encoded(str):
    """JSON text, to be written unchanged."""


def encode(value: Any) -> str:
    """`value` as JSON text, with fast paths for the most common facts of a call."""
    if type(value) is Encoded:
        return str.__str__(value)
    if type(value) is int:
        return int.__repr__(value)
    if value is None or value == []:
        return "null" if value is None else "[]"
    try:
        return _STRICT(value)
    except (TypeError, ValueError):
        return _STRICT(plain(value))


_STRICT = json.JSONEncoder(allow_nan=False, default=members).encode


class Report:
    """An append-only file. Every event is a separate `write` call, so an abort loses no buffer."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.start = time.monotonic()
        self.last = ""

    def event(self, event: Event) -> None:
        """Append one event; `t` is seconds since the worker began."""
        self._write(event.event, members(event))

    def phase(self, name: str, about: str = "") -> None:
        """Append an event that only names a phase (`events.Phase`)."""
        self._write(name, {"about": about} if about else {})

    def _write(self, name: str, facts: Mapping[str, object]) -> None:
        self.last = name
        record = {"event": name, "t": round(time.monotonic() - self.start, 4), **facts}
        os.write(self.file, (encode(record) + "\n").encode("utf-8", "replace"))


TEXT_LIMIT = 20_000  # characters of one exception text


class Refused(Exception):
    """The request itself is wrong. Nothing of the workload ran."""

    def __init__(self, what: str, value: object = None, allowed: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.value = value
        self.allowed = allowed


def encode_frames(chain: Iterable[tuple[CodeType, int]]) -> list[Frame]:
    return [
        Frame(code.co_filename, line, code.co_name, linecache.getline(code.co_filename, line).strip()[:200])
        for code, line in chain
    ]


def facts(error: BaseException) -> ErrorFacts:
    kind = "{}.{}".format(type(error).__module__, type(error).__qualname__)
    return {"type": kind, "text": str(error)[:TEXT_LIMIT]}


# As torchrun, srun, Open MPI and MPICH number them; the first is how torchrun labels the lines of a process.
VARIABLES = ("LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
PIDS = 1 << 22  # larger than any process id (PID_MAX_LIMIT of linux/threads.h)


def rank() -> str:
    """The rank, in digits; empty unless a known launcher started the process."""
    if "AOTI_DEBUG_LAUNCHED" not in os.environ:
        return ""
    return next(filter(str.isdigit, (os.environ.get(name, "") for name in VARIABLES)), "")


def identity() -> int:
    """The process id, with the rank above it because processes on several nodes may share an id."""
    return os.getpid() + PIDS * int(rank() or "0")
