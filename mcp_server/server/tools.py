"""The MCP server class: strict arguments, results as text and structured content within the limits of
clients, and errors that say what to send instead.
"""

import json
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.stdio import stdio_server
from pydantic import ValidationError

from mcp_server import brief
from mcp_server.errors import ProblemError
from mcp_server.model import NextStep, Verdict
from mcp_server.operations import arguments as args
from mcp_server.operations.table import CORE, OPERATIONS, RUN_TOOL, as_listed
from mcp_server.plurals import listed

LIMIT = 10_000
"""Characters of a result. Codex cuts at about 12,000; Claude Code cuts large errors at about 10,000."""

SHORTEST_STRING = 80
WIDEST_MAPPING = 32

Result = dict[str, Any]  # a record as JSON
Progress = Callable[[str], Awaitable[None]]
Path = tuple[str | int, ...]
Cuts = dict[Path, str]  # the original length of each value that was cut

log = logging.getLogger(__name__)


def answer_of(result: Result, full: Result) -> types.CallToolResult:
    """A verdict in a few lines and as its main fields, any other result as JSON in both channels.

    Some clients show a model only one of the channels. `full` names the file with the whole result.
    """
    verdict, data = verdict_in(result), _without_nulls(result)
    if "next" in data:  # only an explanation has this field
        data["next"] = as_listed(NextStep(**data["next"])).model_dump()
    if verdict is not None:
        data = {**brief.main_fields(verdict), "full": full["uri"]}
    data = shorten(data, full=full)
    text = compact(data) if verdict is None else brief.text(verdict)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=data)


def verdict_in(result: Result) -> Verdict | None:
    """The verdict of a diagnosis. None for another result, or one that another version wrote."""
    with suppress(ValidationError):
        return Verdict.model_validate(result) if "format_version" in result else None
    return None


def compact(value: object) -> str:
    """The value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shorten(result: Result, *, limit: int = LIMIT, full: Result | None = None) -> Result:
    """`result`, or a shortened copy if it is too long. `shortened` says what was cut; its `full` names
    the file with the whole result.
    """
    if len(compact(result)) <= limit:
        return result
    short = _without_nulls(result)
    cuts: Cuts = {}
    while len(compact(_with_note(short, cuts, full))) > limit and _halve_largest(short, (), cuts):
        pass
    return _with_note(short, cuts, full)


def _with_note(short: Result, cuts: Cuts, full: Result | None) -> Result:
    """Add one line for each cut value: its place, and how long it was."""
    lines = [f"{'.'.join(map(str, path))}: a part of {size}" for path, size in cuts.items()]
    note: Result = {"cut": lines}
    return {**short, "shortened": {**note, "full": full} if full else note}


def _without_nulls(value: Any) -> Any:
    """Copy a value without the fields that are null or an empty text."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item not in (None, "")}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _halve_largest(value: Any, path: Path, cuts: Cuts) -> bool:
    """Halve the largest list, mapping or string inside `value`. False if nothing more can be cut."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in sorted(keys, key=lambda key: -len(compact(value[key]))):
        item, place = value[key], (*path, key)
        if isinstance(item, str) and len(item) > SHORTEST_STRING:
            end = max(len(item) // 4 - 2, 1)
            half: Any = f"{item[:end]} … {item[-end:]}"
        elif not isinstance(item, dict | list):
            continue
        elif not _is_many(item):
            if _halve_largest(item, place, cuts):
                return True
            continue
        else:
            kept = list(item)[: len(item) // 2]
            half = {name: item[name] for name in kept} if isinstance(item, dict) else kept
        cuts.setdefault(place, f"{len(item)} {'characters' if isinstance(item, str) else 'items'}")
        value[key] = half
        return True
    return False


def _is_many(items: dict[str, Any] | list[Any]) -> bool:
    """Whether to drop half of the items. No if one has most of the text: it is better to cut that one."""
    if len(items) < (WIDEST_MAPPING if isinstance(items, dict) else 2):
        return False
    sizes = [len(compact(item)) for item in (items.values() if isinstance(items, dict) else items)]
    return max(sizes) * 2 <= sum(sizes) or max(sizes) <= SHORTEST_STRING


@dataclass(frozen=True)
class ToolFace:
    """A declared tool, and the function that answers its calls with a result that fits the limit."""

    declaration: args.Declaration
    answer: Callable[[Any, Progress], Awaitable[types.CallToolResult]]


UNLISTED = args.Declaration(
    name=RUN_TOOL,
    title="Run another tool",
    description=f"Runs {listed([each.name for each in OPERATIONS if each.name not in CORE], 'or')}. "
    "Without arguments, it says which are allowed.",
    arguments=args.RunToolArguments,
    hints=args.RUNS_USER_CODE,
)


class ToolServer(MCPServer[Any]):
    """An MCPServer whose tools come from declarations instead of function signatures.

    The SDK drops unknown arguments, parses JSON inside strings and coerces types (mcp 2.3 `func_metadata`).
    Here, arguments are validated against the model instead.
    """

    def __init__(
        self, name: str, tools: Sequence[ToolFace], *, hidden: frozenset[str] = frozenset(), **settings: Any
    ) -> None:
        """Create the server. `hidden` tools are not listed, but calls of them are answered."""
        super().__init__(name, **settings)
        unlisted = ToolFace(UNLISTED, lambda asked, told: self._answer(asked.tool, asked.arguments, told))
        self._faces = {tool.declaration.name: tool for tool in (*tools, unlisted)}
        self._hidden = hidden

    async def list_tools(self) -> list[types.Tool]:
        return [
            types.Tool(
                name=declaration.name,
                title=declaration.title,
                description=declaration.description,
                input_schema=input_schema(declaration.arguments),
                annotations=types.ToolAnnotations.model_validate(declaration.hints),
            )
            for declaration in (face.declaration for face in self._faces.values())
            if declaration.name not in self._hidden
        ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> types.CallToolResult:
        """Text and structured content; an error result says what to send instead."""
        sent = 0

        async def progress(message: str) -> None:
            """Report progress, which goes out only if the client sent a progress token."""
            nonlocal sent
            sent += 1
            if context is not None:
                await context.report_progress(sent, None, message)

        return await result_of(name, self._answer(name, arguments, progress))

    async def _answer(self, name: str, arguments: dict[str, Any], progress: Progress) -> types.CallToolResult:
        if name not in self._faces:
            known = ", ".join(self._faces)
            raise ProblemError(f"unknown tool {name!r}{args.closest(name, self._faces)}", allowed=known)
        face = self._faces[name]
        return await face.answer(args.validated(face.declaration.arguments, arguments), progress)

    async def run_stdio_async(self) -> None:
        async with stdio_server() as (received, answers):
            options = self._lowlevel_server.create_initialization_options()
            try:
                await self._lowlevel_server.run(received, answers, options)
            except BaseException as error:  # even if cancelled because a stream broke
                log.error("the server ends: %s", type(error).__name__)
                # The jobs have ended by now. The thread that reads standard input cannot be cancelled.
                os._exit(1)


async def result_of(name: str, answer: Awaitable[types.CallToolResult]) -> types.CallToolResult:
    """Return the result of tool `name`, or an error result. Never raises."""
    try:
        return await answer
    except ProblemError as error:
        problem = error
    except Exception as error:
        log.exception("%s failed", name)
        # The exception's text is left out, as it may contain anything. The traceback is in the server's log.
        problem = ProblemError(
            f"{name} failed inside aoti-debug with {type(error).__name__}: this is a bug of aoti-debug",
            next_call="see the server's stderr for the traceback",
        )
    fields = {
        "what": problem.what,
        "value": None if problem.value is None else str(problem.value)[:500],
        "allowed": problem.allowed,
        "next": problem.next_call,
    }
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=str(problem)[:4000])],
        structured_content={"error": {name: text for name, text in fields.items() if text not in (None, "")}},
        is_error=True,
    )


def input_schema(model: type[args.Arguments]) -> dict[str, Any]:
    """The model's JSON schema, kept short because it is in the context of every session."""
    schema: dict[str, Any] = _terse(model.model_json_schema())
    schema.pop("description", None)
    schema["properties"] = {name: schema["properties"][name] for name, _ in args.fields_of(model)}
    return schema


SAID = frozenset({"default", "minimum", "maximum", "exclusiveMinimum"})
"""What each description says, and what the call applies and checks (tests/server/test_tools.py)."""


def _terse(schema: Any) -> Any:
    """Drop titles, the keywords in SAID, and `additionalProperties: true`, which is the default.

    A property may be named like a keyword: its value is then a mapping, and stays.
    """
    if isinstance(schema, dict):
        return {
            key: _terse(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
            and not (key in SAID and not (isinstance(value, dict) and "type" in value))
            and (key, value) != ("additionalProperties", True)
        }
    return [_terse(item) for item in schema] if isinstance(schema, list) else schema
