"""The report: JSON lines that survive the death of the process that writes them."""

from __future__ import annotations

import json
import math
import os
import time
from json.encoder import encode_basestring_ascii
from typing import Any


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
        os.write(self.file, (_line(record) + "\n").encode("utf-8", "replace"))


def _line(record: dict[str, Any]) -> str:
    try:
        return _STRICT(record)  # most records are strict JSON as they are
    except (TypeError, ValueError):
        return _STRICT(plain(record))


_STRICT = json.JSONEncoder(allow_nan=False).encode
