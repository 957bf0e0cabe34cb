"""MCP resources: the guides, the flag table, and the files that jobs leave."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError

from mcp_server.errors import ProblemError
from mcp_server.faces.artifacts import PAGE_BYTES, read_artifact
from mcp_server.faces.guides import Guide, available
from mcp_server.jobs.store import SCHEME, Store

MARKDOWN = "text/markdown"


def add_resources(server: MCPServer[Any], store: Store) -> None:
    """Offer every guide, the flag table, and the artifacts of `store`."""
    for guide in available():
        _add_guide(server, guide)
    _add_flags(server)
    _add_artifacts(server, store)


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


def _add_artifacts(server: MCPServer[Any], store: Store) -> None:
    @server.resource(SCHEME + "{job_id}/{+name}{?offset,limit}", name="artifact", title="A file of a job")
    def artifact(job_id: str, name: str, offset: int = 0, limit: int = PAGE_BYTES) -> str:
        """Log, report or result of a job; offset and limit are bytes, 20,000 by default."""
        try:
            return read_artifact(store, job_id, name, offset, limit)
        except ProblemError as problem:
            raise ResourceNotFoundError(str(problem)) from problem
