"""Lines made fit to be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.logs.text import MAX_LINE, bound, clean, read_line


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ("\x1b[1;31merror:\x1b[0m x\n", "error: x"),
        ("\x1b]8;;http://a\x07link\x1b]8;;\x07", "link"),
        (" 10%\r 50%\r100% done\r\n", "100% done"),
        ("a\x00b\u202ec\x9b", "abc"),
        ("\x1b_bk;t=1741234567890\x07boom", "boom"),
    ],
)
def test_clean(raw: str, wanted: str) -> None:
    """Escapes, control characters and redrawn states are gone."""
    assert clean(raw) == wanted


@pytest.mark.parametrize(
    ("raw", "process", "text"),
    [
        ("[rank3]: boom", "3", "boom"),
        ("[default0]:boom", "0", "boom"),
        ("12: boom", "12", "boom"),
        ("[1,4]<stderr>: boom", "1", "boom"),
        ("2026-11-20T19:30:31.5288136Z boom", "", "boom"),
        ("[rank1]:[E1120 18:36:05.165533282 c_shim_cuda.cpp:1273] boom", "1", "boom"),
        ("1024 things", "", "1024 things"),
        ("2025-03-05T19:01:56.823872 - boom", "", "boom"),
        ("Oct 04 15:02:41 llm sd-webui-forge-start[394]: boom", "", "boom"),
        ("Oct 04 things", "", "Oct 04 things"),
        ("(EngineCore_0 pid=4121) boom", "4121", "boom"),
        ("(Worker pid=913) ERROR 03-31 17:21:15 [multiproc_executor.py:932] boom", "913", "boom"),
        ("(train pid=77, ip=10.0.0.4) boom", "77", "boom"),
        ("(a remark) boom", "", "(a remark) boom"),
        ("api-1  | boom", "", "boom"),
    ],
)
def test_prefixes(raw: str, process: str, text: str) -> None:
    """Prefixes of launchers and loggers are told from the text."""
    line = read_line(raw, 1)
    assert (line.process, line.text) == (process, text)


@given(st.text(max_size=200))
def test_clean_is_printable_and_stable(raw: str) -> None:
    """What is clean holds no control characters, and cleaning it again changes nothing."""
    text = clean(raw)
    assert not any(ord(character) < 32 and character != "\t" for character in text)
    assert clean(text) == text


def test_long_lines_keep_both_ends() -> None:
    """A long line is cut in the middle: texts of failed calls end in the line number."""
    text = clean("a" * 50_000 + " line 144")
    assert len(text) <= MAX_LINE + 5
    assert text.endswith("line 144")


@given(st.text(max_size=50), st.integers(min_value=1, max_value=60))
def test_bound(text: str, limit: int) -> None:
    """No text is longer than its bound."""
    assert len(bound(text, limit)) <= limit
