"""Streams that are full, closed or read by nobody, and signals: a real process, as a shell starts it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.server.standard_streams import LossyStream
from tests.server.clients import ROOT
from tests.server.test_cli import CLI, environment

EXPLAIN = [*CLI, "explain-error", "--text", "index out of bounds: 0 <= tmp4 < ks1"]


def shell(tmp_path: Path, redirection: str, command: list[str] = EXPLAIN) -> tuple[int, str, str]:
    """Exit code, output and errors of a command whose streams are redirected."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("> /dev/full", "error: the result cannot be written to standard output: the disk is full\n"),
        (">&-", "error: standard output is closed: nobody would see the result\n"),
    ],
)
def test_an_output_that_takes_nothing(tmp_path: Path, redirection: str, said: str) -> None:
    """A result that reaches nobody is a failure (2) that is said, and not exit code 1: a fault."""
    code, _, err = shell(tmp_path, redirection)
    assert (code, err.startswith(said), "Traceback" in err) == (2, True, False)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_on_a_full_disk(tmp_path: Path, option: str) -> None:
    """The same for what our own code does not print."""
    code, _, err = shell(tmp_path, "> /dev/full", [*CLI, option])
    assert (code, err) == (2, "error: it could not be done: the disk is full\n")


@pytest.mark.parametrize("redirection", ["2> /dev/full", "2>&-"])
def test_errors_that_reach_nobody(tmp_path: Path, redirection: str) -> None:
    """Progress that cannot be printed is no failure."""
    code, out, _ = shell(tmp_path, redirection)
    assert code == 0 and "tmp4" in out


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    """Where no job can be stored, neither there nor in the temporary directory, that is what is said."""
    done = subprocess.run(
        EXPLAIN,
        cwd=tmp_path,
        env={**environment(tmp_path), "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert done.returncode == 2 and "cannot store a job" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_what_is_known(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and SIGHUP end a diagnosis as Ctrl-C does: verdict, how to go on, 128 + n, no process."""
    script = tmp_path / "slow.py"
    script.write_text("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(300)")
    argv = [*CLI, "diagnose", "slow.py"]
    with subprocess.Popen(
        argv,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", process)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert out.startswith("INCONCLUSIVE") and "aoti-debug diagnose --resume job_" in err
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def _until(seen: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 90
    while not seen():
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.05)


WRITES = (
    "import sys\n"
    "from mcp_server.server.standard_streams import log_briefly\n"
    "log_briefly()\n"
    "for n in range(4000): sys.stderr.write(f'line {n} ' + 'x' * 200 + '\\n')\n"
    "print('done')\n"
)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_errors_that_nobody_reads_hold_nobody_up(kind: str) -> None:
    """A megabyte to a pipe and to a socket that are never read: the process goes on and ends."""
    ours, theirs = (end.detach() for end in socket.socketpair()) if kind == "socket" else os.pipe()
    try:
        done = subprocess.run(
            [CLI[0], "-c", WRITES], cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True
        )
        assert done.stdout == b"done\n"
        assert os.read(ours, 7) == b"line 0 "
    finally:
        os.close(ours)
        os.close(theirs)


def test_what_was_dropped_is_counted() -> None:
    """The first line that gets through again says how much is missing before it."""
    taken: list[bytes] = []
    open_now = False

    def write(data: bytes) -> int:
        if not open_now:
            raise BlockingIOError
        taken.append(data)
        return len(data)

    stream = LossyStream(2, write)
    stream.write("lost\n")
    stream.write("lost too\n")
    open_now = True
    stream.write("seen\n")
    stream.write("and this\n")
    assert b"".join(taken) == b"\n[14 bytes were dropped here: nobody read them]\nseen\nand this\n"
