"""However the server ends, no process of a job is left a second later."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.jobs.supervisor import children_of
from tests.jobs.support import all_dead, appears
from tests.server.clients import ROOT

Server = subprocess.Popen[str]

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
    """A server process spoken to by hand."""
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


@contextmanager
def warm_server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A server between two calls, and the ids of the process that has torch imported and of what keeps it."""
    inputs = tmp_path / "in.pt"
    torch.save([torch.ones(1)], inputs)
    with greeted(tmp_path) as server:
        say(server, call(inputs, "warm_up"))
        assert server.stdout is not None
        answers = (json.loads(line) for line in server.stdout)
        warm = int(next(a for a in answers if a.get("id") == 2)["result"]["structuredContent"]["text"])
        assert warm in descendants_of(server.pid), "it was not kept"
        yield server, descendants_of(server.pid)


def descendants_of(pid: int) -> list[int]:
    return [found for child in children_of(pid) for found in (child, *descendants_of(child))]


def say(server: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()


def wait_for(ids: Path) -> list[str]:
    limit = time.monotonic() + 30
    while not ids.exists() or len(ids.read_text().split()) < 2:
        assert time.monotonic() < limit, "the job never started"
        time.sleep(0.02)
    return ids.read_text().split()


def left(pids: list[int]) -> list[int]:
    """Those that still run after at most a second."""
    limit = time.monotonic() + 1
    while (found := [pid for pid in pids if Path("/proc", str(pid)).exists()]) and time.monotonic() < limit:
        time.sleep(0.01)
    return found


def signalled(number: signal.Signals) -> Callable[[Server], None]:
    return lambda server: server.send_signal(number)


def close_input(server: Server) -> None:
    assert server.stdin is not None
    server.stdin.close()


def break_output(server: Server) -> None:
    """The next answer cannot be written: an exception in the server, while standard input stays open."""
    assert server.stdout is not None
    server.stdout.close()
    say(server, {"jsonrpc": "2.0", "id": 9, "method": "ping"})


DEATHS: dict[str, tuple[Callable[[Server], None], int]] = {
    "SIGINT": (signalled(signal.SIGINT), 130),
    "SIGTERM": (signalled(signal.SIGTERM), 143),
    "SIGHUP": (signalled(signal.SIGHUP), 129),
    "SIGKILL": (signalled(signal.SIGKILL), -9),
    "EOF": (close_input, 0),
    "exception": (break_output, 1),
}


@pytest.mark.parametrize("death", DEATHS)
def test_no_death_of_the_server_leaves_an_orphan(tmp_path: Path, death: str) -> None:
    """A second after the server has ended, the child and its daemonised grandchild are gone too."""
    die, status = DEATHS[death]
    with server_with_job(tmp_path) as (server, pids):
        die(server)
        assert server.wait(timeout=5) == status
        assert all_dead(pids, 1.0)


CLIENT = """
import sys, time
from pathlib import Path
from tests.server.test_shutdown import server_with_job
folder = Path(sys.argv[1])
with server_with_job(folder) as (server, pids):
    (folder / "part").write_text(" ".join(map(str, [server.pid, *pids])))
    (folder / "part").rename(folder / "all")
    time.sleep(300)
"""


def test_a_killed_client_leaves_no_orphan(tmp_path: Path) -> None:
    """SIGKILL to the process that started the server: server, child and grandchild are gone in 2 s."""
    with subprocess.Popen([sys.executable, "-c", CLIENT, str(tmp_path)], cwd=ROOT) as client:
        pids = [int(pid) for pid in appears(tmp_path / "all", 60).split()]
        client.kill()
    assert all_dead(pids, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_warm_process_ends_with_the_server(tmp_path: Path, number: signal.Signals | None) -> None:
    """What waits for the next call is gone a second after EOF or any signal, with its supervisor."""
    with warm_server(tmp_path) as (server, pids):
        assert server.stdin is not None
        if number is None:
            server.stdin.close()
        else:
            server.send_signal(number)
        server.wait(timeout=5)
        assert all_dead(pids, 1.0)


@pytest.mark.slow
def test_a_killed_supervisor_takes_the_warm_process_along(tmp_path: Path) -> None:
    """Nobody would look after it any more; the server goes on."""
    with warm_server(tmp_path) as (server, pids):
        (supervisor,) = children_of(server.pid)
        os.kill(supervisor, signal.SIGKILL)
        assert all_dead(pids, 1.0) and server.poll() is None


def test_a_server_ends_with_the_uv_that_started_it(tmp_path: Path) -> None:
    """uv is killed while the client holds the pipe: the server goes too; with another parent it stays."""
    ended = {}
    for name in ("uv", "sh"):
        parent = tmp_path / name
        shutil.copy("/bin/sh", parent)
        script = f'"{sys.executable}" -m mcp_server & echo $! >&2; wait'
        argv = [str(parent), "-c", f"exec 3<&0; {script.replace(' &', ' <&3 &', 1)}"]
        env = {**os.environ, "AOTI_DEBUG_STATE": str(tmp_path / "state")}
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as uv:
            assert uv.stderr is not None and uv.stdout is not None
            server = int(uv.stderr.readline())
            say(uv, HELLO)
            assert json.loads(uv.stdout.readline())["id"] == 1
            uv.kill()
            ended[name] = uv.stdout.read() == "" if name == "uv" else left([server]) == []
            if not ended[name]:
                os.kill(server, signal.SIGKILL)
    assert ended == {"uv": True, "sh": False}
