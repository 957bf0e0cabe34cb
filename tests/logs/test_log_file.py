"""Logs as files: large ones, growing ones, and what is none."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mcp_server.errors import ProblemError
from mcp_server.logs import log
from mcp_server.logs.log import read_log_file

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
