"""Turns bytes of a child into short, harmless lines of text."""

from __future__ import annotations

import re
from collections.abc import Callable

LINE_LIMIT = 2_000  # characters

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, hyperlinks, device strings
    r"|\x1b[ -/]*[0-~]?"
)
# Control characters except tab and newline, and the characters that hide or reorder text.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def clean(text: str) -> str:
    """Drop terminal escapes, control characters, and characters that hide or reorder text."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", text)


class LineReader:
    """Cuts a stream of bytes into cleaned lines of at most LINE_LIMIT characters, in bounded memory.

    The rest of a longer line is left out; a carriage return ends a line, as progress bars use it.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._open = b""

    def feed(self, data: bytes) -> None:
        *whole, rest = data.replace(b"\r", b"\n").split(b"\n")
        if not whole:
            self._open = (self._open + rest)[: LINE_LIMIT * 4]
            return
        whole[0] = self._open + whole[0]
        self._open = rest[: LINE_LIMIT * 4]
        for line in whole:
            self._emit(line)

    def finish(self) -> None:
        """Hand on a last line that has no newline."""
        line, self._open = self._open, b""
        self._emit(line)

    def _emit(self, line: bytes) -> None:
        text = clean(line[: LINE_LIMIT * 4].decode("utf-8", "replace")).rstrip()
        if text:
            self._on_line(text[:LINE_LIMIT])
