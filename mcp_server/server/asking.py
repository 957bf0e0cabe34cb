"""Questions to the user where a call would be refused: which model of a package, which Python has torch.

Form elicitation of MCP: asked only of a client that offers it. Whether the workload may run at all is the
client's own question; the tools' annotations tell it what they do.
"""

from __future__ import annotations

from typing import Any, Literal

from mcp import MCPError
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field, create_model

from mcp_server.errors import ProblemError

LONGEST = 1000  # characters of a question


async def ask(
    problem: ProblemError, arguments: dict[str, Any], context: Context[Any, Any] | None
) -> dict[str, Any] | None:
    """The arguments with the user's answer; None where nobody can be asked, or nobody answered."""
    capabilities = context.client_capabilities if context is not None else None
    if context is None or not problem.asks or capabilities is None or capabilities.elicitation is None:
        return None
    kind: Any = Literal[problem.choices] if len(problem.choices) > 1 else str
    fields: dict[str, Any] = {problem.asks: (kind, Field(description=problem.next_call[:LONGEST]))}
    form: type[BaseModel] = create_model("Answer", **fields)
    try:
        answer = await context.elicit(str(problem)[:LONGEST], form)
    except (MCPError, ValueError):  # no way back to the client, or an unfit answer
        return None
    if answer.action != "accept":
        return None
    return {**arguments, problem.asks: getattr(answer.data, problem.asks)}
