"""Server processes, clients for their pipes or ports, and the processes that they leave."""

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

COMMAND = ["-c", "from mcp_server.cli.main import main; main()"]


class Speaker:
    """The client's end of a server's pipes."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        self.server = server
        self._rest = b""
        self._number = 100

    def write(self, line: str) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(line.encode() + b"\n")
        self.server.stdin.flush()

    def ask(self, method: str, params: dict[str, Any] | None = None) -> int:
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params or {}}
        self.write(json.dumps(request))
        return self._number

    def hear(self, seconds: float = 30) -> dict[str, Any]:
        """The next message."""
        assert self.server.stdout is not None
        limit = time.monotonic() + seconds
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.server.stdout], [], [], max(0, limit - time.monotonic()))
            assert ready, "no answer"
            read = os.read(self.server.stdout.fileno(), 1 << 16)
            assert read, "the server has ended"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    def ping(self) -> float:
        """The seconds until a ping is answered."""
        begun = time.monotonic()
        number = self.ask("ping")
        while self.hear().get("id") != number:
            pass
        return time.monotonic() - begun


@contextmanager
def serving(
    tmp_path: Path,
    stderr: int | None = None,
    project: Path = ROOT,
    within: Sequence[str] = (),
    variables: Mapping[str, str] = {},
) -> Iterator[Speaker]:
    """Start a server for raw messages. Relative paths start at `project`; `within` precedes the command."""
    state = str(tmp_path / "state")
    environment = {**os.environ, "AOTI_DEBUG_STATE": state, "CLAUDE_PROJECT_DIR": str(project), **variables}
    with subprocess.Popen(
        [*within, sys.executable, "-m", "mcp_server"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
    ) as server:
        try:
            speaker = Speaker(server)
            speaker.write(json.dumps(HELLO))
            assert speaker.hear()["id"] == 1
            speaker.write('{"jsonrpc":"2.0","method":"notifications/initialized"}')
            yield speaker
        finally:
            server.kill()


@contextmanager
def serving_on_http(argv: list[str], **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server on a free port, and return its process and URL."""
    with subprocess.Popen(
        [sys.executable, *argv], cwd=ROOT, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            url = re.search(r"http://\S+/mcp$", said)
            assert url, said
            yield server, url[0]
        finally:
            server.kill()


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
    """Start a server for raw messages, and greet it."""
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
    """Start a server with a job. Yield it with the ids of the job's child and grandchild."""
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
