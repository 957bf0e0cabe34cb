"""Logs as files: large ones, growing ones, what is none, and lines made fit to be read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.logs import log
from mcp_server.logs.log import read_log_file
from mcp_server.logs.text import MAX_LINE, bound, clean, read_line

FIRST = (
    "RuntimeError: Error: input_handles[0]: unmatched dtype, expected: 6(at::kFloat) but got: 4(at::kInt)\n"
)
LAST = "RuntimeError: index out of bounds: 0 <= tmp4 < 32L\n"


def test_of_a_large_log_both_ends_are_read(tmp_path: Path) -> None:
    """Errors of the beginning and of the end are found with their true lines; what was left out is said."""
    path = tmp_path / "run.log"
    path.write_text(FIRST + "step\n" * 500_000 + LAST)
    facts = read_log_file(path, head=1000, tail=1000)
    assert [error.line for error in facts.errors] == [1, 500_002]
    assert facts.lines == 500_002
    size = path.stat().st_size
    assert facts.truncated == (
        f"of {size} bytes the first 1000 and the last 1000 were read, the {size - 2000} between them not"
    )


def test_a_log_that_fits_is_read_whole(tmp_path: Path) -> None:
    """Nothing is left out, and nothing is said; carriage returns end lines as they did."""
    path = tmp_path / "run.log"
    path.write_text(f"10%\r50%\r{LAST.strip()}\r100%\n")
    facts = read_log_file(path)
    assert (facts.truncated, facts.root is not None and facts.root.line) == ("", 3)


def test_lines_that_carriage_returns_end_are_counted_in_the_gap(tmp_path: Path) -> None:
    """The number behind the gap is the one that reading all of it gives."""
    path = tmp_path / "run.log"
    path.write_text("1%\r2%\r\n3%\n" * 2000 + LAST, newline="")
    whole, ends = read_log_file(path), read_log_file(path, head=100, tail=100)
    assert whole.root is not None and ends.root is not None
    assert ends.root.line == whole.root.line == 6001


def test_a_log_without_lines(tmp_path: Path) -> None:
    """A sparse gigabyte without a single line's end is read at both ends."""
    path = tmp_path / "zeros.log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    facts = read_log_file(path, head=1 << 20, tail=1 << 20)
    assert facts.root is None and "between them not" in facts.truncated


def test_a_log_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while it is read is not read, and that is said: reading comes to an end."""
    path = tmp_path / "run.log"
    path.write_text(LAST * 100)
    from mcp_server.logs.log import read_parts

    def written_meanwhile(parts: object) -> object:
        with path.open("a") as file:
            file.write(FIRST)
        return read_parts(parts)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "read_parts", written_meanwhile)
    facts = read_log_file(path)
    assert facts.lines == 100
    assert facts.truncated == "the file grew while it was read: what came later was not read"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe that nobody writes to, a device, a directory and a file of the kernel are refused at once."""
    os.mkfifo(tmp_path / "pipe")
    refused = {
        tmp_path / "pipe": "no regular file",
        Path("/dev/zero"): "no regular file",
        tmp_path: "no regular file",
        Path("/proc/self/status"): "a file of the kernel",
        Path("/proc/kmsg"): "a file of the kernel",
        Path("/sys/kernel/mm/transparent_hugepage/enabled"): "a file of the kernel",
    }
    for path, what in refused.items():
        if path.exists():
            with pytest.raises(ProblemError, match=re.escape(f"the log is {what}")):
                read_log_file(path)


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
