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
_DROPPED = (
    (0x00, 0x08),  # control characters except tab and newline
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),  # soft hyphen
    (0x61C, 0x61C),  # Arabic letter mark
    (0x200B, 0x200F),  # of no width, and marks of direction
    (0x2028, 0x202E),  # separators of lines, and what reorders text
    (0x2060, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),  # annotations
    (0xE0000, 0xE007F),  # tags: ASCII that is not seen
)
_CONTROLS = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _DROPPED) + "]")


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
