"""Bytes of a child become harmless text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.jobs.output import clean


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


@given(st.binary(max_size=300))
def test_any_bytes_become_harmless_text(data: bytes) -> None:
    """Whatever a child prints, no control character is left but tab and newline, and cleaning it is final."""
    text = clean(data.decode("utf-8", "replace"))
    assert not any(ord(char) < 32 and char not in "\t\n" for char in text)
    assert clean(text) == text
