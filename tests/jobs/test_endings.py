"""Wait statuses and kills are read correctly."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mcp_server.jobs.child import Decoded, Report, decode, oom_kill_count, parse_report


@pytest.mark.parametrize(
    ("report", "limit", "expected"),
    [
        (Report(status=0), "", ("exit", 0, None)),
        (Report(status=3 << 8), "", ("exit", 3, None)),
        (Report(status=134 << 8), "", ("exit", 134, "SIGABRT")),
        (Report(status=128 << 8), "", ("exit", 128, None)),
        (Report(status=255 << 8), "", ("exit", 255, None)),
        (Report(status=11), "", ("signal", None, "SIGSEGV")),
        (Report(status=6 | 0x80), "", ("signal", None, "SIGABRT")),
        (Report(status=35), "", ("signal", None, "SIG35")),
        (Report(status=9), "", ("signal", None, "SIGKILL")),
        (Report(status=15), "too long", ("timeout", None, "SIGTERM")),
        (Report(status=0), "too long", ("timeout", None, None)),
        (
            Report(status=127 << 8, failed_stage="program", failed_errno=errno.ENOENT),
            "",
            ("not_started", None, None),
        ),
        (Report(), "", ("signal", None, "SIGKILL")),
    ],
)
def test_decode(report: Report, limit: str, expected: tuple[str, int | None, str | None]) -> None:
    """Each way to end has its own name, and a return code only where the program gave one."""
    decoded = decode(report, limit)
    assert (decoded.ending, decoded.returncode, decoded.signal) == expected


def test_kernel_kill_needs_evidence() -> None:
    """SIGKILL counts as out of memory only when the kernel's counter rose meanwhile."""
    assert decode(Report(status=9), oom_kills=1).ending == "out_of_memory"
    assert decode(Report(status=9)).ending == "signal"
    assert decode(Report(status=11), oom_kills=1) == Decoded("signal", signal="SIGSEGV")


def test_kill_of_a_descendant_is_a_note() -> None:
    """A program that fails while something in its control group was killed for memory says so in the note."""
    decoded = decode(Report(status=1 << 8), oom_kills=2)
    assert (decoded.ending, decoded.returncode) == ("exit", 1)
    assert "2 time(s)" in decoded.note


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


def test_supervisor_lines() -> None:
    """The supervisor's lines add up to a report, and an unknown line changes nothing."""
    report = parse_report("started 12\nfailed program 2\nnews from the future\nended 9 1\n")
    assert report == Report(status=9, failed_stage="program", failed_errno=2, left=1)
