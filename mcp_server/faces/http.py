"""MCP over streamable HTTP: beyond this machine only with a token; forged Host and Origin are refused."""

from __future__ import annotations

import hmac
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from mcp_server.errors import ProblemError
from mcp_server.faces.host_gate import HostGate, checked_name
from mcp_server.faces.listening import TOKEN_VARIABLE, Listening
from mcp_server.faces.slow_requests import TimedProtocol

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

CHECKED_BEFORE = TransportSecuritySettings(enable_dns_rebinding_protection=False)
"""Of the SDK, because HostGate checks Host and Origin before it."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
HIGHEST_PORT = 65_535


def serve_http(server: MCPServer[Any], listening: Listening) -> None:
    """Serve until a signal comes. Raises ProblemError when the address cannot be had, or needs a token."""
    with _bound(listening) as bound:
        names = _names(listening)
        app: ASGIApp = HostGate(server.streamable_http_app(transport_security=CHECKED_BEFORE), names)
        if listening.token:
            app = TokenGate(app, listening.token)
        config = uvicorn.Config(app, http=TimedProtocol, log_config=None, access_log=False)
        print(f"aoti-debug listens on {_url(bound)}", file=sys.stderr, flush=True)
        print(f"it goes by {', '.join(names)}, and by the address at which it is reached", file=sys.stderr)
        anyio.run(_Server(config).serve, [bound])


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `exit_on_signals`: uvicorn would wait for clients to hang up first."""
        yield


class TokenGate:
    """Passes only requests that carry the bearer token on to `app`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_let_in(scope):
            await self._app(scope, receive, send)
        else:
            refusal = PlainTextResponse("a bearer token is needed", 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)

    def _is_let_in(self, scope: Scope) -> bool:
        """Compared in constant time, so that the answer's delay tells nothing of the token."""
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        return hmac.compare_digest(token.strip().encode(), self._token) and scheme.lower() == "bearer"


def _names(listening: Listening) -> list[str]:
    """Host names that are taken, beside the address at which a request comes in."""
    given = [listening.host, *map(checked_name, listening.names)]
    own = [] if _is_loopback(_address(listening)) else [socket.gethostname()]
    return list(dict.fromkeys([*LOOPBACK_NAMES, *own, *given]))


@contextmanager
def _bound(listening: Listening) -> Iterator[socket.socket]:
    """The listening socket, made here so that a port that is taken is a problem and port 0 becomes known."""
    address = _address(listening)
    if not listening.token and not _is_loopback(address):
        raise ProblemError(
            "who can reach this server can run code as you: beyond this machine it needs a token",
            value=listening.host,
            allowed=f"--token-file or {TOKEN_VARIABLE}, or a loopback address",
        )
    if not 0 <= listening.port <= HIGHEST_PORT:
        raise ProblemError("no such port", value=listening.port, allowed=f"0-{HIGHEST_PORT}")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        bound = socket.create_server((address, listening.port), family=family)
    except OSError as error:
        where = f"{listening.host} port {listening.port}"
        raise ProblemError(f"cannot listen there ({error})", value=where, allowed="a free port") from None
    with bound:
        yield bound


def _address(listening: Listening) -> str:
    """The IP address to listen on; a name is not looked up."""
    address = "127.0.0.1" if listening.host == "localhost" else listening.host
    try:
        ip_address(address)
    except ValueError:
        allowed = "localhost, or an IP address of this machine"
        raise ProblemError("no such address", value=listening.host, allowed=allowed) from None
    return address


def _is_loopback(address: str) -> bool:
    return ip_address(address.partition("%")[0]).is_loopback


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{_bracketed(host)}:{port}/mcp"


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name
