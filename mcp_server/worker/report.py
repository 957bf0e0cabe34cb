"""The worker's report: facts about tensors, stacks and exceptions, and JSON lines that survive a crash.

The hook imports this file into every program, so it is kept small.
"""

from __future__ import annotations

import json
import linecache
import math
import os
import time
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Optional, TypedDict, Union

if TYPE_CHECKING:  # the hook imports this file into every process
    from .events import Event

Number = Union[int, float, str]  # NaN and infinities are text, because JSON has none


@dataclass
class Frame:
    """One line of a stack."""

    file: str
    line: Optional[int]
    function: str = ""
    code: str = ""


class ErrorFacts(TypedDict):
    """The type and text of an exception."""

    type: str
    text: str


@dataclass
class OddElement:
    """The first element that is not finite or out of bounds, and the number of such elements.

    An unknown `index` is empty, an unknown `count` None.
    """

    value: str
    index: list[int] = field(default_factory=list)
    count: Optional[int] = None

    @property
    def place(self) -> str:
        return " at {}".format(self.index) if self.index else ""


@dataclass
class TensorFacts:
    """Facts about a tensor, or another leaf of a pytree. Unknown facts are None.

    `stride` and `storage_offset` count elements. `layout` is set only for a tensor without strides. `nan`,
    `inf` and `zero` are counts. `min`, `max` and `mean` cover the finite values. `skipped` says why no values
    were read. If the leaf is not a tensor, `value` is its text and `kind` its class.
    """

    path: Optional[str] = None
    kind: Optional[str] = None
    value: Optional[Number] = None
    dtype: Optional[str] = None
    device: Optional[str] = None
    shape: Optional[list[int]] = None
    layout: Optional[str] = None
    stride: Optional[list[int]] = None
    storage_offset: Optional[int] = None
    contiguous: Optional[bool] = None
    alignment: Optional[int] = None
    bytes: Optional[int] = None
    nan: Optional[int] = None
    inf: Optional[int] = None
    zero: Optional[int] = None
    min: Union[int, float, None] = None
    max: Union[int, float, None] = None
    mean: Optional[float] = None
    checksum: Optional[str] = None
    skipped: Optional[str] = None

    @property
    def not_finite(self) -> bool:
        return bool(self.nan or self.inf)


@dataclass
class Overrun:
    """A tensor that an operator allocated. The operator wrote up to `before` and `after` bytes outside it."""

    shape: list[int]
    dtype: str
    before: int
    after: int


@dataclass
class Attempt:
    """One change that was tried on a failed export or compile, and the result.

    `outcome`: passes, differs (from eager mode) or fails. `again` is the error that returned without the
    change; `sizes` counts the input sizes at which the results matched eager mode. `more_lines` are also
    changed. `exported` and `compiled`: the failed export or compile now passes. `reached` is the line at
    which the export failed next. `widened` has the (tensor, dimension) of each dimension whose bound (`name`:
    min or max) was moved; `note` then says what failed. `refuses`: a size of eager mode is rejected.
    """

    name: str
    action: str
    note: str = ""
    file: str = ""
    line: int = 0
    before: str = ""
    after: str = ""
    outcome: str = "fails"
    error: str = ""
    again: str = ""
    sizes: int = 0
    exported: bool = False
    compiled: bool = False
    more_lines: list[int] = field(default_factory=list)
    reached: int = 0
    reached_code: str = ""
    widened: list[tuple[int, int]] = field(default_factory=list)
    refuses: bool = False


def members(value: object) -> dict[str, object]:
    """The fields of a dataclass that are not None, in JSON form."""
    if not hasattr(value, "__dataclass_fields__"):
        raise TypeError(type(value))
    return {name: each for name, each in vars(value).items() if each is not None}


def plain(value: Any) -> Any:
    """`value` in JSON types. Non-finite numbers become the strings `nan`, `inf` and `-inf`."""
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
    """JSON text, which `encode` returns unchanged."""


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
    """An append-only file. Every event is a `write` call of its own, so that an abort loses none."""

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


# Set by torchrun, srun, Open MPI and MPICH. Torchrun labels the output of each process with LOCAL_RANK.
VARIABLES = ("LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
PIDS = 1 << 22  # larger than any process id (PID_MAX_LIMIT of linux/threads.h)


def rank() -> str:
    """The rank as text, or "" if no known launcher started aoti-debug."""
    if "AOTI_DEBUG_LAUNCHED" not in os.environ:
        return ""
    return next(filter(str.isdigit, (os.environ.get(name, "") for name in VARIABLES)), "")


def identity() -> int:
    """The process id with the rank in higher bits, because processes on two nodes may share an id."""
    return os.getpid() + PIDS * int(rank() or "0")
