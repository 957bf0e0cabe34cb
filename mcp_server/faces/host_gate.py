"""Which Host and Origin a request may name: a page in a browser cannot reach the server by another name.

mcp 2.3 compares beginnings (`127.0.0.1:1@evil` passes as `127.0.0.1:*`) and upper and lower case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from mcp_server.errors import ProblemError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_NAME = r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])"
_HOST = re.compile(rf"{_NAME}(?::\d{{1,5}})?")
_ORIGIN = re.compile(rf"(?i:https?)://{_NAME}(?::\d{{1,5}})?")


class HostGate:
    """Passes on what names this server: by one of `names`, or by the address at which it was reached."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(map(plain_name, names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] != "lifespan" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        names = self._names | own_address(scope)
        if not _is_one_of(names, _HOST, headers.getlist("host")):
            return PlainTextResponse("this server does not go by that Host; see serve --allow-host", 421)
        origins = headers.getlist("origin")
        if origins and not _is_one_of(names, _ORIGIN, origins):
            return PlainTextResponse("requests of that Origin are refused", 403)
        return None


def plain_name(name: str) -> str:
    """A host name or address in the one form that is compared."""
    bare = name.strip("[]").partition("%")[0]
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare.lower().rstrip(".")


def checked_name(name: str) -> str:
    """A name that clients may use. Raises ProblemError for a pattern, a URL, or a name with its port."""
    found = _HOST.fullmatch(name if ":" not in name or name.startswith("[") else f"[{name}]")
    if found is None or found["name"].strip("[]") != name.strip("[]") or name.isdigit():
        allowed = "a name or address such as gpu-box.example, without port, path or pattern"
        raise ProblemError("no host name", value=name[:300], allowed=allowed)
    return name


def own_address(scope: Scope) -> frozenset[str]:
    """The address at which the request came in: no name server can turn another name into that Host."""
    server = scope.get("server")
    return frozenset({plain_name(server[0])}) if server and server[1] is not None else frozenset()


def _is_one_of(names: frozenset[str], form: re.Pattern[str], said: list[str]) -> bool:
    """Whether it was said once, in that form, and names us."""
    found = form.fullmatch(said[0]) if len(said) == 1 else None
    return found is not None and plain_name(found["name"]) in names
