"""The supervisor's own parts: finding processes, reading its request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.jobs import supervisor
from mcp_server.jobs.child import encode_request
from tests.jobs.support import FAMILY, family, python


def test_both_ways_to_find_descendants(tmp_path: Path) -> None:
    """With and without the kernel's list of children the same processes are found."""
    with subprocess.Popen(python(FAMILY, str(tmp_path / "pids"))) as child:
        pids = family(tmp_path / "pids")
        try:
            assert set(pids) <= set(supervisor.descendants(quick=True))
            assert set(pids) <= set(supervisor.descendants(quick=False))
        finally:
            for pid in pids:
                os.kill(pid, 9)
        assert child.wait() == -9


def test_request_arrives_whole() -> None:
    """Directory and environment pass the socket unchanged, also bytes that are no UTF-8."""
    reading, writing = os.pipe()
    env = {"A": "1=2\n", "EMPTY": "", "RAW": "\udcff"}
    os.write(writing, encode_request(Path("/some where"), env))
    os.close(writing)
    received = supervisor.read_request(reading)
    os.close(reading)
    assert received == (b"/some where", {b"A": b"1=2\n", b"EMPTY": b"", b"RAW": b"\xff"})


@pytest.mark.parametrize("sent", [b"", b"\0" * 7, b"\0" * 7 + b"\x09/"])
def test_server_that_dies_while_it_asks(sent: bytes) -> None:
    """A request that is cut short starts nothing."""
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)
    argv = [sys.executable, "-I", "-S", supervisor.__file__, str(reading), "--", "echo", "started"]
    done = subprocess.run(argv, pass_fds=[reading], capture_output=True, check=False)
    os.close(reading)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
