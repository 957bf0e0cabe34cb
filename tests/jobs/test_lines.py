"""Bytes of a child become short, harmless lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.jobs.output import LINE_LIMIT, LineReader, clean


def lines_of(*parts: bytes) -> list[str]:
    lines: list[str] = []
    reader = LineReader(lines.append)
    for part in parts:
        reader.feed(part)
    reader.finish()
    return lines


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31merror\x1b[0m", "error"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b\x07c\x9bd", "abcd"),
        ("safe\u202etxt.exe\u2066", "safetxt.exe"),
        ("hid\u200bden\U000e0041", "hidden"),
        ("tab\tand é 漢", "tab\tand é 漢"),
        ("\x1b", ""),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    """Escapes, control characters and invisible characters go, text stays."""
    assert clean(raw) == shown


def test_lines_across_reads() -> None:
    """A line that arrives in pieces is one line, and empty lines are left out."""
    assert lines_of(b"one li", b"ne\n\ntwo\r\nthr", b"ee") == ["one line", "two", "three"]


def test_progress_bars() -> None:
    """Each state of a line redrawn with carriage returns is a line."""
    assert lines_of(b"10%\r20%\r30%\n") == ["10%", "20%", "30%"]


def test_long_line_is_bounded() -> None:
    """Of an endless line the beginning is kept, and the next line is whole."""
    assert lines_of(*[b"x" * 1_000] * 50, b"\nnext\n") == ["x" * LINE_LIMIT, "next"]


@given(st.lists(st.binary(max_size=200)))
def test_any_bytes_become_harmless_lines(parts: list[bytes]) -> None:
    """Whatever a child prints, each line is printable and bounded."""
    for line in lines_of(*parts):
        assert line.strip()
        assert len(line) <= LINE_LIMIT
        assert not any(ord(char) < 32 and char != "\t" for char in line)


@given(st.binary(max_size=300), st.integers(1, 20))
def test_pieces_do_not_matter(data: bytes, size: int) -> None:
    """The lines do not depend on how the bytes were cut by the pipe."""
    assert lines_of(*(data[i : i + size] for i in range(0, len(data), size))) == lines_of(data)
