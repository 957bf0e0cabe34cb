"""Where the HTTP server listens, and the token that it asks for."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from mcp_server.errors import ProblemError

TOKEN_VARIABLE = "AOTI_DEBUG_HTTP_TOKEN"
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Listening:
    """Where to listen, and for whom.

    `names` are further host names by which clients reach this server (a proxy's, or this machine's in the
    network); requests for any other Host are refused. Port 0 takes a free one. `share_jobs`: every client
    may see and stop the jobs of all.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token: str = ""
    names: tuple[str, ...] = ()
    share_jobs: bool = False


def read_token(file: Path | None) -> str:
    """The token in `file`, else in AOTI_DEBUG_HTTP_TOKEN, else "". It is never taken from an argument: those
    can be read by every user of the machine.

    Raises ProblemError for a token that is short, and for a file that others can read.
    """
    token = _private_text(file) if file else os.environ.get(TOKEN_VARIABLE, "").strip()
    if (file or token) and len(token) < SHORTEST_TOKEN:
        raise ProblemError(
            "the token is too short",
            value=f"{len(token)} characters",
            allowed=f"at least {SHORTEST_TOKEN} characters",
            next_call="python3 -c 'import secrets; print(secrets.token_urlsafe(32))' makes one",
        )
    return token


def _private_text(file: Path) -> str:
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise ProblemError(
                "other users can read the file with the token", value=file, allowed="mode 0600"
            )
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"the token cannot be read ({error})", value=file) from None
