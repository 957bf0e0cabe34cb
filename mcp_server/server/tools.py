"""The MCP server class: strict arguments, and results in both channels that fit a client's limit."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, GetPromptResult, InputRequiredResult, TextContent, Tool, ToolAnnotations
from mcp_types.jsonrpc import INVALID_PARAMS

from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import Arguments, Declaration, closest, fields_of, validated
from mcp_server.server.stdio import AnsweringStream
from mcp_server.server.verdict_app import ui_meta

LIMIT = 10_000
"""Characters of a result. Codex cuts at about 12,000, and Claude Code cuts big errors at about 10,000."""

SHORTEST_STRING = 80
WIDEST_MAPPING = 32

Path = tuple[str | int, ...]
Cuts = dict[Path, int]
"""Original length of what was cut."""


def compact(value: object) -> str:
    """The JSON text that both channels carry."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shorten(
    result: dict[str, Any], *, limit: int = LIMIT, full: dict[str, Any] | None = None
) -> dict[str, Any]:
    """`result` itself when it fits, else a copy with `shortened: {cut: [...], full: file}` that does."""
    if len(compact(result)) <= limit:
        return result
    short = _without_nulls(copy.deepcopy(result))
    cuts: Cuts = {}
    while len(compact(_with_note(short, cuts, full))) > limit and _halve_largest(short, (), cuts):
        pass
    return _with_note(short, cuts, full)


def middle_cut(text: str, keep: int) -> str:
    """Head and tail of `text`, together about `keep` characters."""
    half = max(keep // 2 - 2, 1)
    return text if len(text) <= keep else f"{text[:half]} … {text[-half:]}"


def _with_note(short: dict[str, Any], cuts: Cuts, full: dict[str, Any] | None) -> dict[str, Any]:
    note: dict[str, Any] = {"cut": [*_cut_lines(short, cuts), "absent fields are null"]}
    if full:
        note["full"] = full
    return {**short, "shortened": note}


def _cut_lines(short: dict[str, Any], cuts: Cuts) -> list[str]:
    """One line per cut that is still visible: a later cut may have dropped an item that was cut before."""
    found = ((path, size, _find(short, path)) for path, size in cuts.items())
    return [_cut_line(path, size, value) for path, size, value in found if value is not None]


def _cut_line(path: Path, size: int, value: Any) -> str:
    unit = "characters" if isinstance(value, str) else "items"
    return f"{'.'.join(map(str, path))}: {len(value)} of {size} {unit}"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _halve_largest(value: Any, path: Path, cuts: Cuts) -> bool:
    """Halve the largest list, mapping or string inside `value`; False when nothing more can be cut."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    keys.sort(key=lambda key: -len(compact(value[key])))
    return any(_halve_at(value, key, (*path, key), cuts) for key in keys)


def _halve_at(value: Any, key: Any, path: Path, cuts: Cuts) -> bool:
    item = value[key]
    if isinstance(item, dict | list) and not _is_many(item):
        return _halve_largest(item, path, cuts)
    half = _half(item)
    if half is None:
        return False
    cuts.setdefault(path, len(item))
    value[key] = half
    return True


def _half(item: Any) -> Any:
    """The first half of a list or mapping, head and tail of a long string, else None."""
    if isinstance(item, str):
        return middle_cut(item, len(item) // 2) if len(item) > SHORTEST_STRING else None
    if isinstance(item, list):
        return item[: len(item) // 2]
    return dict(list(item.items())[: len(item) // 2]) if isinstance(item, dict) else None


def _is_many(items: Any) -> bool:
    """Dropping items helps, unless one item holds most of the text: then that item is cut."""
    if len(items) < (WIDEST_MAPPING if isinstance(items, dict) else 2):
        return False
    sizes = [len(compact(item)) for item in (items.values() if isinstance(items, dict) else items)]
    return max(sizes) * 2 <= sum(sizes) or max(sizes) <= SHORTEST_STRING


def _find(value: Any, path: Path) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


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
        _meta=ui_meta(declaration.name),
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
