"""Child processes: how they ended, their output, and that none outlives its job or the server."""

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from mcp_server.jobs import supervisor
from mcp_server.jobs.output import BoundedFile, Capture, InOrder, clean
from mcp_server.jobs.supervisor import children_of
from tests.conftest import ROOT
from tests.jobs.support import FAMILY, all_dead, family, finish, python


def test_both_ways_to_find_descendants(tmp_path: Path) -> None:
    """The same processes are found with and without the kernel's list of children."""
    with subprocess.Popen(python(FAMILY, str(tmp_path / "pids"))) as child:
        pids = family(tmp_path / "pids")
        try:
            assert set(pids) <= set(supervisor.descendants(quick=True))
            assert set(pids) <= set(supervisor.descendants(quick=False))
        finally:
            for pid in pids:
                os.kill(pid, 9)
        assert child.wait() == -9


@pytest.mark.parametrize("sent", [b"", b"\0" * 7, b"\0" * 7 + b"\x09/"])
def test_server_that_dies_while_it_asks(sent: bytes) -> None:
    """A request that is cut off starts nothing."""
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)
    argv = [sys.executable, "-I", "-S", supervisor.__file__, str(reading), "--", "echo", "started"]
    done = subprocess.run(argv, pass_fds=[reading], capture_output=True)
    os.close(reading)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("exit 0", ("exit", 0, None)),
        ("exit 3", ("exit", 3, None)),
        ("exit 134", ("exit", 134, "SIGABRT")),
        ("exit 128", ("exit", 128, None)),
        ("exit 255", ("exit", 255, None)),
        ("kill -SEGV $$", ("signal", None, "SIGSEGV")),
        ("kill -ABRT $$", ("signal", None, "SIGABRT")),
        ("kill -35 $$", ("signal", None, "SIG35")),
        ("kill -KILL $$", ("signal", None, "SIGKILL")),
        ("kill -KILL $PPID; sleep 60", ("signal", None, "SIGKILL")),
    ],
)
async def test_how_it_ended(tmp_path: Path, end: str, expected: tuple[str, int | None, str | None]) -> None:
    """Each way to end has its own name. There is a return code only if the program exited."""
    done = await finish(tmp_path, ("sh", "-c", end))
    assert (done.ending, done.returncode, done.signal) == expected
    assert ("supervisor was killed" in done.note) == ("PPID" in end)


GROUPS = [
    ("0::/job\n", "job/memory.events", "oom 4\noom_kill {}\noom_group_kill 0\n"),
    ("5:cpu,memory:/old\n0::/\n", "memory/old/memory.oom_control", "under_oom 0\noom_kill {}\n"),
]


@pytest.mark.parametrize(("groups", "file", "counts"), GROUPS, ids=["version 2", "version 1"])
@pytest.mark.parametrize(
    ("kills", "end", "ending", "noted"),
    [
        (0, "kill -KILL $$", "signal", False),
        (1, "kill -KILL $$", "out_of_memory", True),
        (1, "kill -SEGV $$", "signal", False),
        (2, "exit 1", "exit", True),
    ],
)
async def test_a_kill_by_the_kernel_needs_evidence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    file: str,
    counts: str,
    kills: int,
    end: str,
    ending: str,
    noted: bool,
) -> None:
    """SIGKILL alone does not prove that memory ran out. If a descendant was killed, a note says so."""
    (tmp_path / "cgroup").write_text(groups)
    counter = tmp_path / file
    counter.parent.mkdir(parents=True)
    counter.write_text(counts.format(3))
    places = (tmp_path, tmp_path / "cgroup")
    monkeypatch.setattr("mcp_server.jobs.child.oom_kill_count.__defaults__", places)
    (tmp_path / "after").write_text(counts.format(3 + kills))
    done = await finish(tmp_path, ("sh", "-c", f"cp after {file}; {end}"))
    assert (done.ending, f"ended {kills} process" in done.note) == (ending, noted)


Server = subprocess.Popen[bytes]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    argv = [sys.executable, "-m", "tests.jobs.support", str(tmp_path)]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE)
    with process:
        yield process
        process.kill()


def test_killed_supervisor_takes_the_program_along(server: Server, tmp_path: Path) -> None:
    """The program dies with its supervisor, even while the server is stopped."""
    program, grandchild = family(tmp_path / "pids")
    (supervisor,) = children_of(server.pid)
    server.send_signal(signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    try:
        assert all_dead([program], 15.0)
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_killed_supervisor_leaves_nothing(server: Server, tmp_path: Path) -> None:
    """If the supervisor is killed, the server finds and ends the job's processes by their mark."""
    pids = family(tmp_path / "pids")
    (supervisor,) = children_of(server.pid)
    os.kill(supervisor, signal.SIGKILL)
    assert all_dead(pids, 15.0)
    assert server.poll() is None


def test_streams_are_joined_by_lines(tmp_path: Path) -> None:
    """Output of one stream does not cut a line of the other."""
    file = BoundedFile(tmp_path / "log")
    joined = InOrder(file)
    for stream, data in (("out", b"one "), ("err", b"error\n"), ("out", b"line\nlast"), ("err", b"end")):
        joined.feed(f"std{stream}", data)
    joined.finish()
    file.close()
    assert (tmp_path / "log").read_bytes() == b"error\none line\nlast\nend"


async def test_flood_costs_bounded_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless output is limited on disk, and needs little memory."""
    monkeypatch.setattr(BoundedFile.__init__, "__defaults__", (1 << 20, 1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 64 << 20
    with Capture(tmp_path) as capture:
        code = f"import os\nfor _ in range({size >> 20}): os.write(1, b'0123456789abcde\\n' * 65536)"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(capture.pump)
            with subprocess.Popen(python(code), stdout=capture.stdout, stderr=capture.stderr) as child:
                capture.started()
                await anyio.to_thread.run_sync(child.wait)
    (left_out,) = re.findall(rb"\[(\d+) bytes left out here\]", (tmp_path / "output.log").read_bytes())
    assert 0 <= int(left_out) - (size - (2 << 20)) <= 16  # up to one line more, so that only whole lines stay
    assert (tmp_path / "output.log").stat().st_size < (2 << 20) + 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KiB


async def test_reading_ends_although_a_pipe_is_held(tmp_path: Path) -> None:
    """A process that cannot be killed and keeps the pipe open does not delay the result."""
    with Capture(tmp_path) as capture, anyio.fail_after(60):
        os.write(capture.stdout, b"said\n")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(capture.pump)
            await anyio.sleep(0.05)
            capture.end_within(0.05)
    assert (tmp_path / "stdout.log").read_text() == "said\n"


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
    """Escapes, control characters and invisible characters are removed; other text stays."""
    assert clean(raw) == shown
