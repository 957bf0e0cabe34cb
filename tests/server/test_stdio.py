"""The server on stdio: lines that are not messages, long reads, and the end of its processes."""

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
from tests.conftest import ROOT, Zoo
from tests.jobs.support import all_dead
from tests.package.archives import write
from tests.package.made_wrapper import make_wrapper
from tests.support.servers import HELLO, call, greeted, left, say, server_with_job, serving
from tests.zoo.names import THOROUGH, nightly

SOON_S = 15.0  # a server that waited for its jobs would take minutes

# Messages on stdio.

LINES = ("no", "{", "", "[]", '{"jsonrpc":"2.0","id":"a","method":7}', '{"jsonrpc":"2.0","id":1,"result":3}')


def test_a_line_that_is_no_message_ends_nothing(tmp_path: Path) -> None:
    """A request after an invalid line is answered."""
    with serving(tmp_path) as speaker:
        for line in LINES:
            speaker.write(line)
            assert speaker.ping() < 20


def test_a_stderr_that_nobody_reads(tmp_path: Path) -> None:
    """Two hundred failing requests fill the stderr pipe; the server still answers the next ping."""
    with serving(tmp_path, stderr=subprocess.PIPE) as speaker:
        for _ in range(200):
            number = speaker.ask("resources/read", {"uri": "aoti-debug://jobs/job_00000000/" + "x" * 500})
            while speaker.hear().get("id") != number:
                pass
        assert speaker.ping() < 20


ASSERTION = (
    "/tmp/k.py:12: kernel: block: [{0},0,0], thread: [{1},0,0] "
    "Assertion `index out of bounds: 0 <= tmp4 < ks1` failed.\n"
)


@pytest.fixture(scope="module")
def large_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 200 MB with the device assertions of a large grid."""
    path = tmp_path_factory.mktemp("log") / "large.log"
    piece = "".join(ASSERTION.format(number, number % 32) for number in range(10_000))
    with path.open("w") as file:
        while file.tell() < 200e6:
            file.write(piece)
    return path


@pytest.mark.slow
def test_a_large_log_holds_nobody_up(tmp_path: Path, large_log: Path) -> None:
    """While 200 MB are read, which takes many seconds, pings are answered at once."""
    with serving(tmp_path) as speaker:
        speaker.ask("tools/call", {"name": "explain_error", "arguments": {"log": str(large_log)}})
        time.sleep(1)
        pings = sorted(speaker.ping() for _ in range(40))
        assert pings[len(pings) // 2] <= 0.5 and pings[int(len(pings) * 0.95)] <= 2, pings


@pytest.fixture(scope="module")
def large_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with a wrapper of 10,000 launches, which takes seconds to read, and an empty library."""
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
    ("try_fix", {"inputs": SPECS, "changes": ["0: clamp 0 9"]}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "arguments"), [("diagnose", {"inputs": SPECS}), *(THOROUGH * REST)])
def test_a_large_package_holds_nobody_up(
    tool: str, arguments: dict[str, Any], large_package: Path, zoo: Zoo, tmp_path: Path
) -> None:
    """While the package is read, pings are answered at once."""
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
        while time.monotonic() < begun + 12 and (heard := speaker.hear()).get("id") != asked:
            if heard.get("id") == ping:
                pings.append(time.monotonic() - sent)
                time.sleep(0.02)
                ping, sent = speaker.ask("ping"), time.monotonic()
        assert time.monotonic() - begun > 1
        # If the event loop read the package, the ping would wait for that. Other tests run at the same time.
        pings.sort()
        assert pings[len(pings) // 2] <= 0.5 and pings[int(len(pings) * 0.95)] <= 2, pings


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancel", *nightly("leave")])
def test_reading_a_large_log_ends_at_once(tmp_path: Path, large_log: Path, how: str) -> None:
    """Soon after a cancel, or after the client leaves, no process reads the log."""
    with serving(tmp_path) as speaker:
        number = speaker.ask("tools/call", {"name": "explain_error", "arguments": {"log": str(large_log)}})
        limit = time.monotonic() + 60
        while not readers(large_log):
            assert time.monotonic() < limit
            time.sleep(0.05)
        begun = time.monotonic()
        if how == "cancel":
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
            speaker.write(json.dumps(cancel))
        else:
            assert speaker.server.stdin is not None
            speaker.server.stdin.close()
            assert speaker.server.wait(timeout=60) == 0
        while readers(large_log):
            assert time.monotonic() - begun <= SOON_S
            time.sleep(0.02)


def readers(file: Path) -> list[str]:
    """The processes that have the file open."""
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if descriptor.readlink() == file:
                found.append(descriptor.parts[2])
        except OSError:
            continue
    return [pid for pid in found if pid != str(os.getpid())]


# However the server ends, no process of a job is left.

Server = subprocess.Popen[str]


@contextmanager
def warm_server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A server between two calls, with the ids of the process that has torch imported and its supervisor."""
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


def signalled(number: signal.Signals) -> Callable[[Server], None]:
    return lambda server: server.send_signal(number)


def close_input(server: Server) -> None:
    assert server.stdin is not None
    server.stdin.close()


def break_output(server: Server) -> None:
    """Close the pipe for answers: the next one raises in the server, while standard input stays open."""
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


@pytest.mark.parametrize("death", ["SIGKILL", "EOF", "exception", *nightly("SIGINT", "SIGTERM", "SIGHUP")])
def test_no_death_of_the_server_leaves_an_orphan(tmp_path: Path, death: str) -> None:
    """Soon after the server has ended, the child and its grandchild in another session have ended too."""
    die, status = DEATHS[death]
    with server_with_job(tmp_path) as (server, pids):
        die(server)
        assert server.wait(timeout=60) == status
        assert all_dead(pids, SOON_S)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, *nightly(None, signal.SIGINT, signal.SIGTERM)])
def test_a_warm_process_ends_with_the_server(tmp_path: Path, number: signal.Signals | None) -> None:
    """A process that waits for the next call ends soon after EOF or any signal, with its supervisor."""
    with warm_server(tmp_path) as (server, pids):
        assert server.stdin is not None
        if number is None:
            server.stdin.close()
        else:
            server.send_signal(number)
        server.wait(timeout=60)
        assert all_dead(pids, SOON_S)


@pytest.mark.slow
def test_a_killed_supervisor_takes_the_warm_process_along(tmp_path: Path) -> None:
    """Without its supervisor the process ends, and the server continues."""
    with warm_server(tmp_path) as (server, pids):
        (supervisor,) = children_of(server.pid)
        os.kill(supervisor, signal.SIGKILL)
        assert all_dead(pids, SOON_S) and server.poll() is None


def test_a_server_ends_with_the_uv_that_started_it(tmp_path: Path) -> None:
    """If uv is killed while the client holds the pipe, the server ends; with another parent it stays."""
    ended = {}
    for name in ("uv", "sh") if THOROUGH else ("uv",):
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
    assert ended == {name: name == "uv" for name in ended}
