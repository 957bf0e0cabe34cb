"""MCP resources: guides, the flag table, jobs, the files that they leave, and parts of packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from mcp.server import MCPServer
from mcp.server.mcpserver import ResourceSecurity
from mcp.server.mcpserver.exceptions import ResourceNotFoundError

from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import load
from mcp_server.jobs.output import clean
from mcp_server.jobs.store import SCHEME, Store
from mcp_server.server.prompts import GUIDES, REFERENCE, Guide, available
from mcp_server.server.running import Ownership

PAGE_BYTES = 20_000
LARGEST_PAGE_BYTES = 200_000


def read_artifact(store: Store, job_id: str, name: str, offset: int = 0, limit: int = PAGE_BYTES) -> str:
    """Text of `limit` bytes (at most 200,000) from `offset`; what is left out is said in a last line.

    A client may print it on a terminal: escapes and control characters are left out.

    Raises ProblemError: no such job or file, a path out of the job's directory, a binary file, a bad range.
    """
    uri = f"{SCHEME}{job_id}/{quote(name)}"
    path = store.path_of(uri)
    size = path.stat().st_size
    if not 0 <= offset <= size or not 1 <= limit <= LARGEST_PAGE_BYTES:
        allowed = f"offset 0-{size}, limit 1-{LARGEST_PAGE_BYTES}"
        raise ProblemError("no such range", value=f"offset {offset}, limit {limit}", allowed=allowed)
    with path.open("rb") as file:
        file.seek(offset)
        page = file.read(limit)
    if b"\0" in page:
        raise ProblemError("the file is binary", value=name, next_call=f"open {path} with a local tool")
    return clean(page.decode("utf-8", "replace")) + _note(uri, offset + len(page), size)


def _note(uri: str, end: int, size: int) -> str:
    return "" if end >= size else f"\n[up to byte {end} of {size}; next: {uri}?offset={end}]"


MARKDOWN = "text/markdown"
JSON = "application/json"
SHOWN_JOBS = 50
DIGITS = 18


def add_resources(server: MCPServer[Any], store: Store, ownership: Ownership) -> None:
    """Offer every guide, the flag table, the jobs and artifacts of `store`, and what packages hold."""
    for guide in available((*GUIDES, *REFERENCE)):
        _add_guide(server, guide)
    _add_flags(server)
    _add_jobs(server, store, ownership)
    _add_artifacts(server, store, ownership)
    _add_packages(server)


def _add_guide(server: MCPServer[Any], guide: Guide) -> None:
    @server.resource(guide.uri, name=guide.file, title=guide.title, mime_type=MARKDOWN)
    def read() -> str:
        """A guide: which symptom it is for, and the procedure."""
        return guide.path.read_text(encoding="utf-8")


def _add_flags(server: MCPServer[Any]) -> None:
    @server.resource("aoti-debug://flags", name="flags", title="Every debugging flag", mime_type=MARKDOWN)
    def flags() -> str:
        """When each flag acts, since which torch, what it shows and what it misses."""
        from mcp_server.flags import FLAGS, table_markdown

        return table_markdown(FLAGS)


def _add_jobs(server: MCPServer[Any], store: Store, ownership: Ownership) -> None:
    @server.resource("aoti-debug://jobs", name="jobs", title="The newest jobs", mime_type=JSON)
    def jobs() -> str:
        """Handle, tool and state of the newest jobs, also of those whose handle was lost."""
        newest = ownership.listed(reversed(store.ids()))[:SHOWN_JOBS]
        return json.dumps([_summary(store, job_id) for job_id in newest], indent=1)


def _summary(store: Store, job_id: str) -> dict[str, Any]:
    directory = store.find(job_id)
    saved = load(directory.path)
    state = saved.state if saved else "running" if store.is_running(directory) else "lost"
    return {"job_id": job_id, "tool": directory.kind, "state": state}


def _add_artifacts(server: MCPServer[Any], store: Store, ownership: Ownership) -> None:
    @server.resource(SCHEME + "{job_id}/{+name}{?offset,limit}", name="artifact", title="A file of a job")
    def artifact(job_id: str, name: str, offset: str = "", limit: str = "") -> str:
        """Log, report or result of a job; offset and limit are bytes, 20,000 by default."""
        with _refusals():
            ownership.check(job_id)
            begin, most = _number("offset", offset, 0), _number("limit", limit, PAGE_BYTES)
            return read_artifact(store, job_id, name, begin, most)


def _number(name: str, text: str, default: int) -> int:
    """As text here and not as `int`: the SDK answers to a wrong type that the server failed."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS):
        raise ProblemError(f"{name} is no number of bytes", value=text[:80], allowed="a whole number from 0")
    return int(text)


def _add_packages(server: MCPServer[Any]) -> None:
    # A package lies where the caller says, as with the tools: its path is no part of this server's tree.
    anywhere = ResourceSecurity(exempt_params={"package"})
    common: dict[str, Any] = {"mime_type": JSON, "security": anywhere}

    @server.resource(
        "aoti-debug://kernels/{kernel}{?package}", name="kernel", title="A kernel of a package", **common
    )
    def kernel(kernel: str, package: str = "") -> str:
        """Source, assertions and launches of a kernel of the .pt2 file `package`."""
        from mcp_server.server.package_parts import kernel_text

        with _refusals():
            return kernel_text(package, kernel)

    @server.resource(
        "aoti-debug://buffers/{buffer}{?package}", name="buffer", title="A buffer of a package", **common
    )
    def buffer(buffer: str, package: str = "") -> str:
        """Shape, producer and readers of a tensor of the .pt2 file `package`."""
        from mcp_server.server.package_parts import buffer_text

        with _refusals():
            return buffer_text(package, buffer)


@contextmanager
def _refusals() -> Iterator[None]:
    """A problem as the protocol has it."""
    try:
        yield
    except ProblemError as problem:
        raise ResourceNotFoundError(str(problem)) from problem
