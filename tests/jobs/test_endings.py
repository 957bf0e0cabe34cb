"""Wait statuses and kills are read correctly."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mcp_server.jobs.child import (
    Decoded,
    Report,
    decode,
    oom_kill_count,
    parse_line,
    signal_name,
    signal_of_status,
    survivors,
)


@pytest.mark.parametrize(
    ("report", "stop", "expected"),
    [
        (Report(status=0), None, ("exit", 0, None)),
        (Report(status=3 << 8), None, ("exit", 3, None)),
        (Report(status=134 << 8), None, ("exit", 134, "SIGABRT")),
        (Report(status=255 << 8), None, ("exit", 255, None)),
        (Report(status=11), None, ("signal", None, "SIGSEGV")),
        (Report(status=6 | 0x80), None, ("signal", None, "SIGABRT")),
        (Report(status=9), None, ("signal", None, "SIGKILL")),
        (Report(status=15), "timeout", ("timeout", None, "SIGTERM")),
        (Report(status=0), "timeout", ("timeout", None, None)),
        (Report(status=15), "cancelled", ("cancelled", None, "SIGTERM")),
        (Report(status=9, memory_used=5), None, ("out_of_memory", None, "SIGKILL")),
        (
            Report(status=127 << 8, failed_stage="program", failed_errno=errno.ENOENT),
            None,
            ("not_started", None, None),
        ),
        (Report(), None, ("signal", None, "SIGKILL")),
    ],
)
def test_decode(report: Report, stop: str | None, expected: tuple[str, int | None, str | None]) -> None:
    """Each way to end has its own name, and a return code only where the program gave one."""
    decoded = decode(report, stop)  # type: ignore[arg-type]
    assert (decoded.ending, decoded.returncode, decoded.signal) == expected


def test_kernel_kill_needs_evidence() -> None:
    """SIGKILL counts as out of memory only when the kernel's counter rose meanwhile."""
    assert decode(Report(status=9), None, oom_kills=1).ending == "out_of_memory"
    assert decode(Report(status=9), None).ending == "signal"
    assert decode(Report(status=11), None, oom_kills=1) == Decoded("signal", signal="SIGSEGV")


def test_kill_of_a_descendant_is_a_note() -> None:
    """A program that fails while something in its control group was killed for memory says so in the note."""
    decoded = decode(Report(status=1 << 8), None, oom_kills=2)
    assert (decoded.ending, decoded.returncode) == ("exit", 1)
    assert "2 time(s)" in decoded.note


def test_signal_names() -> None:
    """Numbers without a name are shown as numbers, and statuses that mean no signal have none."""
    assert (signal_name(11), signal_name(35)) == ("SIGSEGV", "SIG35")
    assert [signal_of_status(status) for status in (1, 128, 139, 200)] == [None, None, "SIGSEGV", None]


def test_oom_counter_of_both_versions(tmp_path: Path) -> None:
    """The kernel's counter is found in the control groups of version 1 and of version 2."""
    groups = tmp_path / "cgroup"
    for text, file, content in [
        ("0::/job\n", "job/memory.events", "oom 4\noom_kill 3\noom_group_kill 0\n"),
        ("5:cpu,memory:/old\n0::/\n", "memory/old/memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ]:
        groups.write_text(text)
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(content)
        assert oom_kill_count(tmp_path, groups) == int(content.split("oom_kill ")[1][0])


def test_no_oom_counter(tmp_path: Path) -> None:
    """Without control groups nothing is claimed."""
    assert oom_kill_count(tmp_path, tmp_path / "absent") == 0


def test_survivors() -> None:
    """Processes that could not be killed are mentioned, and only they."""
    assert "2 process(es)" in survivors(Report(status=9, left=2))
    assert survivors(Report(status=9)) == ""


def test_supervisor_lines() -> None:
    """The supervisor's lines add up to a report, and an unknown line changes nothing."""
    report = Report()
    for line in ["started 12", "memory 100", "news from the future", "ended 9 1"]:
        report = parse_line(report, line.split())
    assert report == Report(status=9, pid=12, memory_used=100, left=1)
