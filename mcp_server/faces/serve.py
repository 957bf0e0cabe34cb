"""`aoti-debug serve`: the same operations over MCP, on stdio or HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcp_server.errors import ProblemError
from mcp_server.faces.listening import Listening, read_token

HERE = Listening()


def serve(
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP instead of stdio.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.", metavar="ADDRESS")] = HERE.host,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", metavar="NUMBER")] = HERE.port,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File (mode 0600) with the bearer token that clients must send.", show_default=False
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Further name by which clients may address this server.", metavar="NAME", show_default=False
        ),
    ] = None,
    share_jobs: Annotated[
        bool, typer.Option("--share-jobs", help="Every client may see and stop the jobs of all.")
    ] = False,
) -> None:
    """Serve the same operations over MCP, for an agent: on stdio, or with --http on this machine.

    Whoever can call the tools can run code as you. Beyond this machine the server asks for a bearer token,
    from --token-file or AOTI_DEBUG_HTTP_TOKEN; set one on a machine that you share, too.
    """
    from mcp_server import server

    if http:
        names = tuple(allow_host or ())
        server.serve_http(Listening(host, port, read_token(token_file), names, share_jobs))
    elif (host, port) != (HERE.host, HERE.port) or token_file or allow_host or share_jobs:
        raise ProblemError("these options are for HTTP", allowed="with --http")
    else:
        server.serve()
