"""MCP over streamable HTTP: checks bearer tokens, Host and Origin, and limits incomplete requests."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import socket
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import h11
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.jsonrpc import INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_server.errors import ProblemError, read_json
from mcp_server.server.app import exit_on_signals
from mcp_server.server.standard_streams import log_briefly

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
HIGHEST_PORT = 65_535
REQUEST_LIMIT_S = 30.0
"""The time from the first byte, or the connection, to the end of the body: enough for 4 MiB at 1 Mbit/s."""

SESSION_HEADER = "mcp-session-id"
BODY_LIMIT = 4 << 20  # bytes; the limit of mcp 2.3

_NAME = r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])"
_HOST = re.compile(rf"{_NAME}(?::\d{{1,5}})?")
_ORIGIN = re.compile(rf"(?i:https?)://{_NAME}(?::\d{{1,5}})?")
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


TOKEN_VARIABLE = "AOTI_DEBUG_HTTP_TOKEN"
SHORTEST_TOKEN = 16


def read_token(file: Path | None) -> str:
    """Return the token in `file`, in AOTI_DEBUG_HTTP_TOKEN, or "". It is never an argument, because
    every user of the machine can read those.

    Raise ProblemError if the token is too short or if others can read the file.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if file:
        try:
            if stat.S_IMODE(file.stat().st_mode) & 0o077:
                what = "other users can read the file with the token"
                raise ProblemError(what, value=file, allowed="mode 0600")
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ProblemError(f"the token cannot be read ({error})", value=file) from None
    if (file or token) and len(token) < SHORTEST_TOKEN:
        raise ProblemError(
            "the token is too short",
            value=f"{len(token)} characters",
            allowed=f"at least {SHORTEST_TOKEN} characters",
            next_call="python3 -c 'import secrets; print(secrets.token_urlsafe(32))' makes one",
        )
    return token


class Gate:
    """Passes on requests that name this server, and carry its token if it has one.

    A page in a browser must not reach the server by another name: Host must be one of `names` or the address
    at which the request arrived, which no name server can give to another name. mcp 2.3 compares only
    beginnings (`127.0.0.1:1@evil` passes as `127.0.0.1:*`) and is case-sensitive.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str], token: str) -> None:
        self._app = app
        self._names = frozenset(map(plain_name, names))
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] != "lifespan" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # In constant time: the delay of the answer reveals nothing about the token.
        if self._token and not (
            hmac.compare_digest(token.strip().encode(), self._token) and scheme.lower() == "bearer"
        ):
            return PlainTextResponse("a bearer token is needed", 401, {"WWW-Authenticate": "Bearer"})
        server = scope.get("server")
        names = self._names | ({plain_name(server[0])} if server and server[1] is not None else set())
        if not _is_one_of(names, _HOST, headers.getlist("host")):
            return PlainTextResponse("this server does not accept that Host; see serve --allow-host", 421)
        origins = headers.getlist("origin")
        if origins and not _is_one_of(names, _ORIGIN, origins):
            return PlainTextResponse("requests from that Origin are rejected", 403)
        return None


class DistinctIds:
    """Rejects a request whose id is still in use by another request of its session.

    mcp 2.3 keeps one stream for each id of a session: of two requests with the same id, the earlier would
    wait forever for its answer. Requests without a session have their own streams.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[tuple[str, int | str]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = Headers(scope=scope).get(SESSION_HEADER) if scope["type"] == "http" else None
        if session is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        received = await _whole_body(receive)
        number = _id_of(b"".join(message.get("body", b"") for message in received))
        if number is None:
            await self._app(scope, _replayed(received, receive), send)
            return
        key = (session, number)
        if key in self._open:
            error = {"code": INVALID_REQUEST, "message": "another request of this session still has this id"}
            answer = {"jsonrpc": "2.0", "id": number, "error": error}
            await JSONResponse(answer, 400)(scope, receive, send)
            return

        self._open.add(key)
        try:
            await self._app(scope, _replayed(received, receive), send)
        finally:
            self._open.discard(key)


def _replayed(received: list[Message], receive: Receive) -> Receive:
    """Return a receiver that first repeats messages already read, then passes on new ones."""

    async def again() -> Message:
        return received.pop(0) if received else await receive()

    return again


async def _whole_body(receive: Receive) -> list[Message]:
    """Read the messages of a request's body, up to BODY_LIMIT bytes: the SDK rejects a longer body."""
    messages: list[Message] = []
    size = 0
    while size <= BODY_LIMIT:
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
        if not messages[-1].get("more_body", False):
            break
    return messages


def _id_of(body: bytes) -> int | str | None:
    """Return the id of a JSON-RPC request. None for a notification or anything that is not a request."""
    try:
        message = read_json(body)
    except ValueError:
        return None
    found = message.get("id") if isinstance(message, dict) and "method" in message else None
    return found if isinstance(found, int | str) else None


def plain_name(name: str) -> str:
    """Normalise a host name or address for comparison."""
    bare = name.strip("[]").partition("%")[0]
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare.lower().rstrip(".")


def _is_one_of(names: frozenset[str], form: re.Pattern[str], values: list[str]) -> bool:
    """Whether the header occurs once, has this form, and names us."""
    found = form.fullmatch(values[0]) if len(values) == 1 else None
    return found is not None and plain_name(found["name"]) in names


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for each request."""

    limit_s = REQUEST_LIMIT_S
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch(self.conn.their_state in _INCOMPLETE)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch(self.conn.their_state in _INCOMPLETE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch(False)
        super().connection_lost(exc)

    def _watch(self, incomplete: bool) -> None:
        if incomplete and self._limit is None:
            self._limit = self.loop.call_later(self.limit_s, self.transport.abort)
        elif self._limit is not None and not incomplete:
            self._limit.cancel()
            self._limit = None


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `exit_on_signals`: uvicorn would wait for clients to hang up first."""
        yield


def serve_http(
    server: MCPServer[Any],
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str = "",
    further: Iterable[str] = (),
) -> None:
    """Serve until a signal arrives; then no job is left. Port 0 selects a free port.

    `further` are other names by which clients reach this server (a proxy's, or this machine's in the
    network); requests for any other Host are rejected. Raise ProblemError if the address is unavailable, or
    needs a token.
    """
    exit_on_signals()
    address = "127.0.0.1" if host == "localhost" else host
    try:
        is_loopback = ip_address(address).is_loopback  # names are not resolved
    except ValueError:
        allowed = "localhost, or an IP address of this machine"
        raise ProblemError("no such address", value=host, allowed=allowed) from None
    own = [] if is_loopback else [socket.gethostname()]
    names = dict.fromkeys([*LOOPBACK_NAMES, *own, host, *map(_checked_name, further)])
    if not token and not is_loopback:
        raise ProblemError(
            "who can reach this server can run code as you: beyond this machine it needs a token",
            value=host,
            allowed=f"--token-file or {TOKEN_VARIABLE}, or a loopback address",
        )
    # The socket is created here, so that a port in use is reported as a problem and port 0 becomes known.
    with _listening(address, port) as listening:
        log_briefly()
        # The SDK's own check is off, because Gate checks Host and Origin first.
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        served = DistinctIds(server.streamable_http_app(transport_security=unchecked))
        app = Gate(served, names, token)
        config = uvicorn.Config(app, http=TimedProtocol, log_config=None, access_log=False)
        at, taken = listening.getsockname()[:2]
        url = f"http://{f'[{at}]' if ':' in at else at}:{taken}/mcp"
        print(f"aoti-debug listens on {url}", file=sys.stderr, flush=True)
        print(f"it goes by {', '.join(names)}, and by the address at which it is reached", file=sys.stderr)
        anyio.run(_Server(config).serve, [listening])


def _checked_name(name: str) -> str:
    """Return a name that clients may use. Raise ProblemError for a pattern, a URL, or a name with a port."""
    found = _HOST.fullmatch(name if ":" not in name or name.startswith("[") else f"[{name}]")
    if found is None or found["name"].strip("[]") != name.strip("[]") or name.isdigit():
        allowed = "a name or address such as gpu-box.example, without port, path or pattern"
        raise ProblemError("no host name", value=name[:300], allowed=allowed)
    return name


def _listening(address: str, port: int) -> socket.socket:
    if not 0 <= port <= HIGHEST_PORT:
        raise ProblemError("no such port", value=port, allowed=f"0-{HIGHEST_PORT}")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        where = f"{address} port {port}"
        raise ProblemError(f"cannot listen there ({error})", value=where, allowed="a free port") from None
