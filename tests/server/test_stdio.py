"""The server on stdio, spoken to by hand: lines that are no messages, and logs that take long to read."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ZooPackage
from tests.package.archives import write
from tests.package.made_wrapper import make_wrapper
from tests.server.clients import ROOT
from tests.server.test_shutdown import HELLO
from tests.zoo.names import THOROUGH

LINES: list[tuple[str, int | None, Any]] = [
    ("nonsense", -32700, None),
    ("{", -32700, None),
    ('{"jsonrpc":"2.0","id":4,"method":"\\ud800"}', -32700, 4),
    ('{"jsonrpc":"2.0","id":' + "9" * 5000 + ',"method":"ping"}', -32700, None),
    ('{"jsonrpc":"2.0","id":3,"method":"ping","params":[1]}', -32600, 3),
    ('{"jsonrpc":"2.0","id":"a","method":7}', -32600, "a"),
    ('{"id":7,"method":"ping"}', -32600, 7),
    # The SDK takes these for notifications.
    ('{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
    ('{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600, None),
    ('{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
    ('{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600, None),
    ("[]", -32600, None),
    ("true", -32600, None),
    ("null", -32600, None),
    ("1.5", -32600, None),
    ('[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
    ("", None, None),
    ('{"jsonrpc":"2.0","method":"notifications/initialized","params":3}', None, None),
    ('{"jsonrpc":"2.0","id":1,"result":3}', None, None),
    ('{"jsonrpc":"2.0","id":9,"method":"prompts/get","params":{"name":"none"}}', -32602, 9),
    (
        '{"jsonrpc":"2.0","id":9,"method":"prompts/get","params":{"name":"debug_aoti_failure"}}',
        -32602,
        9,
    ),
    (
        '{"jsonrpc":"2.0","id":9,"method":"resources/read","params":'
        '{"uri":"aoti-debug://jobs/job_00000000/x?offset=abc"}}',
        -32602,
        9,
    ),
]


class Speaker:
    """One end of a server's pipes."""

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
        self.write(
            json.dumps({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params or {}})
        )
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
        """Seconds to the answer."""
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
    """A server that is spoken to by hand; relative paths start at `project`, `within` starts the command."""
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


def test_each_line_is_answered(tmp_path: Path) -> None:
    """What is no message, or asks for what there is not, gets its code; empty lines and answers get none."""
    heard: list[tuple[str, int | None, Any]] = []
    with serving(tmp_path) as speaker:
        for line, expected, _ in LINES:
            speaker.write(line)
            ping = speaker.ask("ping")
            answers = [speaker.hear()]
            # A request that reads a file is answered from a thread: the ping behind it may be first.
            while len(answers) < (1 if expected is None else 2) or ping not in [a.get("id") for a in answers]:
                answers.append(speaker.hear())
            errors = [(a["error"]["code"], a["id"]) for a in answers if "error" in a]
            heard.append((line, *(errors[0] if errors else (None, None))))
    assert heard == LINES


def test_a_stderr_that_nobody_reads(tmp_path: Path) -> None:
    """Two hundred failing requests fill the pipe; the server answers the next ping all the same."""
    with serving(tmp_path, stderr=subprocess.PIPE) as speaker:
        for _ in range(200):
            number = speaker.ask("resources/read", {"uri": "aoti-debug://kernels/k?package=%00" + "x" * 500})
            while speaker.hear().get("id") != number:
                pass
        assert speaker.ping() < 2


ASSERTION = (
    "/tmp/k.py:12: kernel: block: [{0},0,0], thread: [{1},0,0] "
    "Assertion `index out of bounds: 0 <= tmp4 < ks1` failed.\n"
)


@pytest.fixture(scope="module")
def large_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 MB of device assertions, as a large grid prints them."""
    path = tmp_path_factory.mktemp("log") / "large.log"
    piece = "".join(ASSERTION.format(number, number % 32) for number in range(10_000))
    with path.open("w") as file:
        while file.tell() < 200e6:
            file.write(piece)
    return path


@pytest.mark.slow
def test_a_large_log_holds_nobody_up(tmp_path: Path, large_log: Path) -> None:
    """While 200 MB are read, 19 of 20 pings are answered within 0.1 s, and wait_job in its time."""
    with serving(tmp_path) as speaker:
        speaker.ask("tools/call", {"name": "explain_error", "arguments": {"log": str(large_log)}})
        time.sleep(1)
        pings = sorted(speaker.ping() for _ in range(40))
        assert pings[int(len(pings) * 0.95)] <= 0.1, pings


@pytest.fixture(scope="module")
def large_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wrapper of 10,000 launches, which takes seconds to read; its library is empty."""
    folder = "made/data/aotinductor/model/"
    members = {
        "made/archive_format": b"pt2",
        f"{folder}made.wrapper.cpp": make_wrapper(10_000).encode(),
        f"{folder}made.wrapper.so": b"",
    }
    return write(tmp_path_factory.mktemp("package") / "made.pt2", members)


SPECS = [{"shape": [8, 16]}, {"shape": [8, 16]}]
REST: list[tuple[str, dict[str, Any]]] = [
    ("compare_with_eager", {"exported": "EXPORTED"}),
    ("inspect_package", {}),
    ("reduce", {"inputs": SPECS, "scope": "launch", "launch": 0}),
    ("try_fix", {"inputs": SPECS, "changes": ["0: clamp 0 9"]}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("diagnose", {"inputs": SPECS}),
        *(THOROUGH * REST),
    ],
)
def test_a_large_package_holds_nobody_up(
    tool: str, arguments: dict[str, Any], large_package: Path, zoo: ZooPackage, tmp_path: Path
) -> None:
    """While it is read, pings are answered as during a log."""
    exported = zoo("ranker").with_name("ranker.exported.pt2")
    words = {"package": str(large_package), **arguments}
    if "exported" in words:
        words["exported"] = str(exported)
    if tool != "inspect_package":
        words["python"] = sys.executable
    with serving(tmp_path) as speaker:
        begun, pings = time.monotonic(), []
        asked = speaker.ask("tools/call", {"name": tool, "arguments": words})
        ping, sent = speaker.ask("ping"), begun
        while time.monotonic() < begun + 20 and (heard := speaker.hear()).get("id") != asked:
            if heard.get("id") == ping:
                pings.append(time.monotonic() - sent)
                time.sleep(0.02)
                ping, sent = speaker.ask("ping"), time.monotonic()
        assert time.monotonic() - begun > 1
        # A loop that reads the package itself answers after more than a second. Other tests run meanwhile.
        pings.sort()
        assert pings[len(pings) // 2] <= 0.1 and pings[int(len(pings) * 0.95)] <= 0.3, pings


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancel", "leave"])
def test_reading_a_large_log_ends_at_once(tmp_path: Path, large_log: Path, how: str) -> None:
    """Within 2 s of a cancel, or of the client's leave, no process reads the log any more."""
    with serving(tmp_path) as speaker:
        number = speaker.ask("tools/call", {"name": "explain_error", "arguments": {"log": str(large_log)}})
        limit = time.monotonic() + 60
        while not readers(large_log):
            assert time.monotonic() < limit
            time.sleep(0.05)
        begun = time.monotonic()
        if how == "cancel":
            say_cancel = {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": number},
            }
            speaker.write(json.dumps(say_cancel))
        else:
            assert speaker.server.stdin is not None
            speaker.server.stdin.close()
            assert speaker.server.wait(timeout=10) == 0
        while readers(large_log):
            assert time.monotonic() - begun <= 2
            time.sleep(0.02)
        assert time.monotonic() - begun <= 2


def readers(file: Path) -> list[str]:
    """Processes that have the file open."""
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if descriptor.readlink() == file:
                found.append(descriptor.parts[2])
        except OSError:
            continue
    return [pid for pid in found if pid != str(os.getpid())]
