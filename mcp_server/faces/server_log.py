"""What the server writes to standard error: short lines, harmless on a terminal, that never hold it up."""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType

from mcp_server.faces.standard_streams import never_wait_for_errors
from mcp_server.jobs.lines import clean
from mcp_server.jobs.manager import innermost

LONGEST_MESSAGE = 2_000  # characters
FRAMES = 4
"""Frames of an exception that are named, the innermost."""

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class BriefFormatter(logging.Formatter):
    """One line per event and one per frame: a client that keeps the log of every server has room for it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return clean(super().formatMessage(record)).replace("\n", " ")[:LONGEST_MESSAGE]

    def formatException(self, ei: ExceptionInfo) -> str:
        kind, error, trace = ei
        if kind is None or error is None:
            return ""
        error = innermost(error)
        frames = traceback.extract_tb(error.__traceback__ or trace)[-FRAMES:]
        places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        said = clean(str(error)).replace("\n", " ")[:LONGEST_MESSAGE]
        return "\n".join([f"  {type(error).__name__}: {said}", *places])


def log_briefly() -> None:
    """Set up standard error and the root logger; before the SDK, which would print boxed tracebacks."""
    never_wait_for_errors()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(BriefFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
