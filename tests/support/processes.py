"""A server with a running job, and its remaining processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}


def call(file: Path, tool: str = "run_child") -> dict[str, Any]:
    params = {"name": tool, "arguments": {"file": str(file), "wait_s": 45}}
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}


@contextmanager
def greeted(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A server process after the greeting, driven by raw messages."""
    argv = [sys.executable, "-m", "tests.server.sample", str(tmp_path / "state")]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            say(server, HELLO)
            assert server.stdout is not None
            assert json.loads(server.stdout.readline())["id"] == 1
            say(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
            yield server
        finally:
            server.kill()


@contextmanager
def server_with_job(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A server, and the ids of its job's child and grandchild."""
    ids = tmp_path / "ids"
    with greeted(tmp_path) as server:
        say(server, call(ids))
        yield server, [int(pid) for pid in wait_for(ids)]


def say(server: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()


def wait_for(ids: Path) -> list[str]:
    limit = time.monotonic() + 120
    while not ids.exists() or len(ids.read_text().split()) < 2:
        assert time.monotonic() < limit, "the job never started"
        time.sleep(0.02)
    return ids.read_text().split()


def left(pids: list[int]) -> list[int]:
    """The processes that still run after at most 15 s."""
    limit = time.monotonic() + 15
    while (found := [pid for pid in pids if Path("/proc", str(pid)).exists()]) and time.monotonic() < limit:
        time.sleep(0.01)
    return found
