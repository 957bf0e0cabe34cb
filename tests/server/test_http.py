"""The server on HTTP: who is let in, what is refused, and that it ends with its jobs."""

from __future__ import annotations

import http.client
import json
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from mcp_server.errors import ProblemError
from mcp_server.server.http import read_token
from tests.server.clients import ERAS, Era, data_of
from tests.support.servers import COMMAND, HELLO, call, left, serving_on_http, wait_for
from tests.zoo.names import nightly

# The server on HTTP: who is let in, what is refused, and that it ends with its jobs.

TOKEN = "correct-horse-battery-staple"
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def open_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server on loopback without a token."""
    state = tmp_path_factory.mktemp("open") / "state"
    command = [*COMMAND, "serve", "--http", "--port", "0"]
    with serving_on_http(command, AOTI_DEBUG_STATE=str(state)) as (_, url):
        yield url


@pytest.fixture(scope="module")
def guarded_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server on all addresses, with a token from a file and one more name."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    command = [*COMMAND, "serve", "--http", "--port", "0", "--host", "0.0.0.0"]
    options = ["--token-file", str(file), "--allow-host", "gpu-box.example"]
    with serving_on_http([*command, *options], AOTI_DEBUG_STATE=str(folder / "state")) as (_, url):
        yield url.replace("0.0.0.0", "127.0.0.1")


def status_of(url: str, **headers: str) -> int:
    return httpx2.post(url, json=HELLO, headers={**JSON, **headers}).status_code


@pytest.mark.parametrize("era", ERAS)
def test_a_client_calls_a_tool(open_url: str, era: Era) -> None:
    """Both eras get the same complete answer over HTTP as over stdio."""

    async def talk() -> None:
        async with Client(open_url, mode=era) as client:
            answer = data_of(
                await client.call_tool(
                    "explain_error",
                    {"text": "RuntimeError: CUDA error: an illegal memory access was encountered"},
                )
            )
            assert "illegal_memory_access" in answer["candidates"]

    anyio.run(talk)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://localhost:6274"}, 200),
        ({"Content-Type": "text/plain"}, 400),
        # names are compared whole, in upper and lower case alike
        ({"Host": "LOCALHOST:1234"}, 200),
        ({"Host": "localhost."}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "[0:0:0:0:0:0:0:1]"}, 200),
        ({"Host": "127.0.0.1:18765@evil"}, 421),
        ({"Host": "127.0.0.1:1:2"}, 421),
        ({"Host": "localhost:"}, 421),
        ({"Host": "localhost/evil"}, 421),
        ({"Host": "2130706433"}, 421),
        ({"Host": "0.0.0.0"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "HTTP://LocalHost"}, 200),
        ({"Origin": "http://localhost:18765.evil.com"}, 403),
        ({"Origin": "http://localhost@evil.com"}, 403),
        ({"Origin": "http://localhost:80/"}, 403),
        ({"Origin": "chrome-extension://localhost"}, 403),
        ({"Origin": "file://"}, 403),
    ],
)
def test_forged_headers_are_refused_on_loopback(open_url: str, headers: dict[str, str], status: int) -> None:
    """A page in the user's browser cannot reach the server under another name or from another origin."""
    assert status_of(open_url, **headers) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"bearer {TOKEN}"}, 200),  # RFC 9110: the scheme is case-insensitive
        ({"Authorization": f"Bearer {TOKEN}", "Host": "gpu-box.example:8765"}, 200),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}, 421),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}, 403),
    ],
)
def test_the_token_is_needed_beyond_loopback(guarded_url: str, headers: dict[str, str], status: int) -> None:
    """Bound to all addresses, only the whole token lets in, and forged names stay refused."""
    assert status_of(guarded_url, **headers) == status
    if not headers:
        for path in ("/", "/mcp/", "/docs"):  # also those that do not exist
            assert httpx2.get(guarded_url.replace("/mcp", path)).status_code == status


def test_a_huge_body_is_refused(open_url: str) -> None:
    """A request of 5 MB is answered with 413 and the server lives on."""
    assert httpx2.post(open_url, content=b" " * 5_000_000, headers=JSON).status_code == 413
    assert status_of(open_url) == 200


def test_an_id_in_use_is_refused(open_url: str) -> None:
    """Each of ten requests with one id gets an answer: the result, or that the id is in use."""
    session = httpx2.post(open_url, json=HELLO, headers=JSON).headers["mcp-session-id"]
    headers = {**JSON, "mcp-session-id": session}
    httpx2.post(open_url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    text = {"text": "index out of bounds: 0 <= tmp4 < ks1"}
    params = {"name": "explain_error", "arguments": text}
    asked = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    with ThreadPoolExecutor(10) as threads:
        ask = partial(httpx2.post, open_url, json=asked, headers=headers, timeout=60)
        answers = list(threads.map(lambda _: ask(), range(10)))
    refused = [answer for answer in answers if answer.status_code == 400]
    assert all("still has this id" in answer.text and answer.json()["id"] == 7 for answer in refused)
    served = [answer for answer in answers if answer not in refused]
    assert served and all("cpu_index_assert" in answer.text for answer in served)


@pytest.mark.parametrize(
    ("listening", "what"),
    [
        ({"host": "0.0.0.0"}, "needs a token"),
        ({"host": "::"}, "needs a token"),
        ({"host": "no-such-host.invalid"}, "no such address"),
        ({"port": 70_000}, "no such port"),
        ({"host": "203.0.113.9", "token": TOKEN}, "cannot listen"),
    ],
)
def test_addresses_that_are_refused(listening: dict[str, Any], what: str, tmp_path: Path) -> None:
    """All addresses without a token, and addresses that cannot be had, are problems and serve nobody."""
    from mcp_server.jobs.store import Store
    from mcp_server.server.app import make_server
    from mcp_server.server.http import serve_http

    with pytest.raises(ProblemError, match=what):
        serve_http(make_server(Store(tmp_path / "state")), **listening)


def test_where_the_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a private file or the environment; short ones and files that others can read are refused."""
    monkeypatch.delenv("AOTI_DEBUG_HTTP_TOKEN", raising=False)
    assert read_token(None) == ""
    monkeypatch.setenv("AOTI_DEBUG_HTTP_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    file = tmp_path / "token"
    file.write_text(f" {TOKEN}-2\n")
    file.chmod(0o640)
    with pytest.raises(ProblemError, match="other users can read"):
        read_token(file)
    file.chmod(stat.S_IRUSR)
    assert read_token(file) == f"{TOKEN}-2"
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(ProblemError, match="too short"):
        read_token(file)
    with pytest.raises(ProblemError, match="cannot be read"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("number", [signal.SIGTERM, *nightly(signal.SIGINT)])
def test_a_signal_ends_server_and_jobs(tmp_path: Path, number: signal.Signals) -> None:
    """With a call in flight the server is gone at once, and the job's processes with it."""
    ids = tmp_path / "ids"
    with serving_on_http(["-m", "tests.server.sample", str(tmp_path / "state"), "--http"]) as (server, url):
        session = httpx2.post(url, json=HELLO, headers=JSON).headers["mcp-session-id"]
        waiting = http.client.HTTPConnection(url.split("/")[2])
        with closing(waiting):
            waiting.request("POST", "/mcp", json.dumps(call(ids)), {**JSON, "mcp-session-id": session})
            pids = [int(pid) for pid in wait_for(ids)]
            server.send_signal(number)
            assert server.wait(timeout=60) == 128 + number
        assert left(pids) == []


def test_an_address_of_this_machine_is_a_name(guarded_url: str) -> None:
    """Listening on all addresses, the server goes by the address at which a request comes in."""
    url = guarded_url.replace("127.0.0.1", "127.0.0.2")
    assert status_of(url, Authorization=f"Bearer {TOKEN}") == 200
    assert status_of(url, Authorization=f"Bearer {TOKEN}", Host="127.0.0.3") == 421


REQUEST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
IMPATIENT = (
    "from mcp_server.server.http import TimedProtocol as t; t.limit_s = 1; "
    "from mcp_server.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def impatient_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that waits for a second."""
    command = ["-c", IMPATIENT, "serve", "--http", "--port", "0"]
    with serving_on_http(command, AOTI_DEBUG_STATE=str(tmp_path_factory.mktemp("impatient"))) as (_, url):
        yield url


@pytest.mark.parametrize(
    "half",
    [b"", REQUEST, REQUEST + b"Content-Length: 9\r\n\r\n{"],
    ids=["nothing", "half the headers", "half the body"],
)
def test_half_a_request_loses_its_connection(impatient_url: str, half: bytes) -> None:
    """Who sends nothing, half the headers or half the body is cut off; others are answered meanwhile."""
    connection = http.client.HTTPConnection(impatient_url.split("/")[2], timeout=60)
    connection.connect()
    with closing(connection.sock) as slow:
        slow.sendall(half)
        assert status_of(impatient_url) == 200
        try:
            while slow.recv(4096):
                pass
        except ConnectionResetError:
            pass


def session_of(url: str) -> dict[str, str]:
    """The headers of a new session."""
    return {**JSON, "mcp-session-id": httpx2.post(url, json=HELLO, headers=JSON).headers["mcp-session-id"]}


def asked(url: str, headers: dict[str, str], method: str, params: Mapping[str, object]) -> dict[str, Any]:
    """The answer to a request of a session: the last message of its stream."""
    body = {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}
    lines = httpx2.post(url, json=body, headers=headers, timeout=300).text.splitlines()
    return dict(json.loads([line for line in lines if line.startswith("data: {")][-1].removeprefix("data: ")))


@pytest.mark.parametrize("shared", [False, True])
def test_a_job_belongs_to_its_session(tmp_path: Path, shared: bool) -> None:
    """Another session is not told of it, cannot read or stop it; with --share-jobs it can."""
    option = ["--share-jobs"] if shared else []
    command = [*COMMAND, "serve", "--http", "--port", "0", *option]
    with serving_on_http(command, AOTI_DEBUG_STATE=str(tmp_path / "state")) as (_, url):
        mine, other = session_of(url), session_of(url)
        arguments = {"script": str(tmp_path / "slow.py"), "wait_s": 0, "python": sys.executable}
        (tmp_path / "slow.py").write_text("print('SECRET-OF-A', flush=True)\nimport time\ntime.sleep(60)\n")
        call = {"name": "run_deterministic", "arguments": arguments}
        job = asked(url, mine, "tools/call", call)["result"]["structuredContent"]["job_id"]
        may = []
        for headers in (mine, other):
            listed = asked(url, headers, "resources/read", {"uri": "aoti-debug://jobs"})
            read = asked(url, headers, "resources/read", {"uri": f"aoti-debug://jobs/{job}/asked.json"})
            waited = asked(url, headers, "tools/call", _of_job("wait_job", job, wait_s=0))
            may += [
                job in json.dumps(listed["result"]),
                "result" in read,
                not waited["result"].get("isError", False),
            ]
        assert may == [True] * 3 + [shared] * 3
        stopped = asked(url, other, "tools/call", _of_job("stop_job", job))["result"]
        assert stopped.get("isError", False) is not shared
        ended = asked(url, mine, "tools/call", _of_job("stop_job", job))["result"]
        assert ended["structuredContent"]["state"] == "stopped"


def _of_job(tool: str, job: str, **more: object) -> dict[str, object]:
    return {"name": tool, "arguments": {"job_id": job, **more}}
