"""How an exception of the workload is told, and how a request is refused."""

from __future__ import annotations

import linecache
import sys
import traceback
from types import TracebackType
from typing import Any, Optional

TEXT_LIMIT = 20_000  # characters of one exception text
FRAME_LIMIT = 60


class Refused(Exception):
    """The request itself is wrong: nothing of the workload ran."""

    def __init__(self, what: str, value: object = None, allowed: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.value = value
        self.allowed = allowed


def frames(trace: Optional[TracebackType]) -> list[dict[str, Any]]:
    """File, line, function and source text of each frame, outermost first."""
    summary = traceback.extract_tb(trace)[-FRAME_LIMIT:]
    return [
        {
            "file": frame.filename,
            "line": frame.lineno,
            "function": frame.name,
            "code": linecache.getline(frame.filename, frame.lineno or 0).strip()[:300],
        }
        for frame in summary
    ]


def facts(error: BaseException) -> dict[str, Any]:
    """Type, text and frames of `error` and of what caused it."""
    cause = error.__cause__ or error.__context__
    return {
        "type": "{}.{}".format(type(error).__module__, type(error).__qualname__),
        "text": str(error)[:TEXT_LIMIT],
        "frames": frames(error.__traceback__),
        "cause": "" if cause is None else "{}: {}".format(type(cause).__qualname__, cause)[:TEXT_LIMIT],
    }


def tell(error: BaseException, report: Any) -> None:
    """Event `failed` (`during` names the phase), and the traceback on stderr for a reader of logs."""
    report.event("failed", during=report.last, **facts(error))
    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    sys.stderr.flush()
