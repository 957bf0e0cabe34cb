"""The MCP server class: tools declared by the table, strict arguments, both result channels complete."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolResult,
    GetPromptResult,
    InputRequiredResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from mcp_types.jsonrpc import INVALID_PARAMS

from mcp_server.errors import ProblemError
from mcp_server.faces.arguments import closest, validated
from mcp_server.faces.shorten import compact
from mcp_server.faces.stdio import AnsweringStream
from mcp_server.operations.arguments import Arguments, fields_of
from mcp_server.operations.declaration import Declaration

log = logging.getLogger(__name__)

Progress = Callable[[str], Awaitable[None]]
Result = dict[str, Any]


@dataclass(frozen=True)
class ToolFace:
    """A declared tool and what answers its calls with a result that fits the limit."""

    declaration: Declaration
    answer: Callable[[Any, Progress], Awaitable[Result]]


class ToolServer(MCPServer[Any]):
    """An MCPServer whose tools come from declarations instead of function signatures.

    The SDK drops unknown arguments, parses JSON inside strings and coerces types (mcp 2.3
    `func_metadata`); validating against the model here does none of that.
    """

    def __init__(self, name: str, tools: Sequence[ToolFace], **settings: Any) -> None:
        super().__init__(name, **settings)
        self._faces = {tool.declaration.name: tool for tool in tools}

    async def list_tools(self) -> list[Tool]:
        return [_tool(face.declaration) for face in self._faces.values()]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult:
        """Both channels carry the same JSON; a problem is an error result that says what to do instead."""

        async def answer() -> Result:
            face = self._face(name)
            checked: Arguments = validated(face.declaration.arguments, arguments)
            return await face.answer(checked, _progress(context))

        return await result_of(name, answer)

    async def run_stdio_async(self) -> None:
        async with stdio_server() as (received, answers):
            options = self._lowlevel_server.create_initialization_options()
            await self._lowlevel_server.run(AnsweringStream(received, answers), answers, options)

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        context: Context[Any, Any] | None = None,
    ) -> GetPromptResult | InputRequiredResult:
        """Raises MCPError with INVALID_PARAMS for a prompt or argument that is none (mcp 2.3 has code 0)."""
        known = {prompt.name: prompt for prompt in await self.list_prompts()}
        if name not in known:
            raise _wrong(f"unknown prompt {name!r}{closest(name, known)}; there are {', '.join(known)}")
        needed = [argument.name for argument in known[name].arguments or () if argument.required]
        missing = [argument for argument in needed if argument not in (arguments or {})]
        if missing:
            raise _wrong(f"missing argument {missing[0]!r} of prompt {name!r}")
        return await super().get_prompt(name, arguments, context)

    def _face(self, name: str) -> ToolFace:
        if name not in self._faces:
            known = ", ".join(self._faces)
            raise ProblemError(f"unknown tool {name!r}{closest(name, self._faces)}", allowed=known)
        return self._faces[name]


def _wrong(what: str) -> MCPError:
    return MCPError(code=INVALID_PARAMS, message=what[:1000])


async def result_of(name: str, answer: Callable[[], Awaitable[Result]]) -> CallToolResult:
    """What the tool `name` answers, or why it cannot. Never raises."""
    try:
        return _complete(await answer())
    except ProblemError as problem:
        return _failed(problem)
    except Exception as error:
        log.exception("%s failed", name)
        return _failed(_bug(name, error))


def input_schema(model: type[Arguments]) -> dict[str, Any]:
    """The model's JSON schema, short: every byte of it is in the context of every session."""
    schema: dict[str, Any] = _terse(model.model_json_schema())
    schema.pop("description", None)
    schema["properties"] = {name: schema["properties"][name] for name, _ in fields_of(model)}
    return schema


def _tool(declaration: Declaration) -> Tool:
    hints = declaration.hints
    return Tool(
        name=declaration.name,
        title=declaration.title,
        description=declaration.description,
        input_schema=input_schema(declaration.arguments),
        annotations=ToolAnnotations(
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def _terse(schema: Any) -> Any:
    """Drops what says nothing: titles (a property named title is a mapping and stays) and empty defaults."""
    if isinstance(schema, dict):
        return {key: _terse(value) for key, value in schema.items() if not _is_idle(key, value)}
    return [_terse(item) for item in schema] if isinstance(schema, list) else schema


def _is_idle(key: str, value: Any) -> bool:
    named = key == "title" and isinstance(value, str)
    # Any further property is what JSON schema allows by itself.
    return (
        named
        or (key == "default" and value in ("", [], {}))
        or (key, value) == ("additionalProperties", True)
    )


def _progress(context: Context[Any, Any] | None) -> Progress:
    """Progress notifications, numbered; nothing goes out unless the client sent a progress token."""
    sent = 0

    async def report(message: str) -> None:
        nonlocal sent
        sent += 1
        if context is not None:
            await context.report_progress(sent, None, message)

    return report


def _complete(result: Result) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=compact(result))], structured_content=result)


def _failed(problem: ProblemError) -> CallToolResult:
    error = {
        "what": problem.what,
        "value": _shown(problem.value),
        "allowed": problem.allowed,
        "next": problem.next_call,
    }
    said = {name: text for name, text in error.items() if text not in (None, "")}
    text = TextContent(type="text", text=str(problem)[:4000])
    return CallToolResult(content=[text], structured_content={"error": said}, is_error=True)


def _shown(value: object) -> str | None:
    return None if value is None else str(value)[:500]


def _bug(name: str, error: Exception) -> ProblemError:
    """Not the text of the exception: it may hold anything. The traceback is in the server's log."""
    return ProblemError(
        f"{name} failed inside aoti-debug with {type(error).__name__}: this is a bug of aoti-debug",
        next_call="see the server's stderr for the traceback",
    )
