"""The table of operations: what the server offers as tools and the command line as commands."""

from __future__ import annotations

from mcp_server.operations.declaration import Operation

OPERATIONS: tuple[Operation, ...] = ()
