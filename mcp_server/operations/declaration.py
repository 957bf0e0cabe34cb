"""What the table of operations says about each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_server.operations.arguments import Arguments

if TYPE_CHECKING:
    from mcp_server.model import Record
    from mcp_server.steps.context import Context

Call = Callable[["Context", Any], Awaitable["Record"]]


def joined(text: str) -> str:
    """A text written over several lines as one."""
    return " ".join(text.split())


@dataclass(frozen=True)
class Hints:
    """MCP's four tool annotations."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool


# The workload is a program of the caller's choice: it may write, delete and talk to anybody.
RUNS_USER_CODE = Hints(read_only=False, destructive=True, idempotent=False, open_world=True)
READS = Hints(read_only=True, destructive=False, idempotent=True, open_world=False)
CONTROLS = Hints(read_only=False, destructive=True, idempotent=True, open_world=False)


@dataclass(frozen=True)
class Declaration:
    """What a client is told about a tool."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    hints: Hints


@dataclass(frozen=True)
class Operation(Declaration):
    """A tool and a command: both are made from this."""

    call: Call
    examples: tuple[str, ...] = ()

    @property
    def runs_workload(self) -> bool:
        """Whether a call of it runs the user's code, and so counts against the jobs side by side."""
        return self.hints is RUNS_USER_CODE
