"""MCP on stdio: a line that is no message is answered with a JSON-RPC error.

mcp 2.3 drops such a line, so that a client waits for ever for what it asked there; on HTTP it answers.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError
from mcp_types.jsonrpc import INVALID_REQUEST, PARSE_ERROR
from pydantic import ValidationError

from mcp_server.errors import read_json
from mcp_server.jobs.output import clean

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream, WriteStream

    Received = SessionMessage | Exception

LONGEST_REASON = 300  # characters


class AnsweringStream:
    """The messages of `source`; for a line that is none, an error goes to `answers` instead."""

    def __init__(self, source: ReadStream[Received], answers: WriteStream[SessionMessage]) -> None:
        self._source = source
        self._answers = answers

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent: the SDK handles it in that."""
        return getattr(self._source, "last_context", None)

    async def receive(self) -> Received:
        while isinstance(received := await self._source.receive(), Exception):
            await self._answer(received)
        return received

    async def _answer(self, received: Exception) -> None:
        error = answer_to(received)
        if error is not None:
            await self._answers.send(SessionMessage(error))

    async def aclose(self) -> None:
        await self._source.aclose()

    def __aiter__(self) -> AnsweringStream:
        return self

    async def __anext__(self) -> Received:
        async for received in self._source:
            if not isinstance(received, Exception):
                return received
            await self._answer(received)
        raise StopAsyncIteration

    async def __aenter__(self) -> AnsweringStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def answer_to(error: Exception) -> JSONRPCError | None:
    """What to answer to a line that could not be read; nothing to an empty one, a notification, an answer."""
    if not isinstance(error, ValidationError):
        return _refusal(PARSE_ERROR, "the line cannot be read", None)
    found = error.errors(include_url=False)
    if found[0]["type"] == "json_invalid":
        line = str(found[0]["input"]).strip()
        reason = f"the line is not JSON: {found[0]['msg']}"
        return _refusal(PARSE_ERROR, reason, _id_of(_value_of(line))) if line else None
    # Each kind of message says what it misses; the first that misses a whole field has all of the value.
    message = next((item["input"] for item in found if item["type"] in ("missing", "model_type")), None)
    if isinstance(message, dict) and _wants_no_answer(message):
        return None
    where = ".".join(str(part) for part in found[0]["loc"][1:])
    return _refusal(
        INVALID_REQUEST, f"not a message of JSON-RPC 2.0: {where}: {found[0]['msg']}", _id_of(message)
    )


def _wants_no_answer(message: dict[Any, Any]) -> bool:
    """An answer, or a notification: it has a method and no id."""
    return "result" in message or "error" in message or ("method" in message and "id" not in message)


def _value_of(line: str) -> Any:
    """A line that only a stricter reader refuses, such as one with half a surrogate pair."""
    try:
        return read_json(line)
    except ValueError:
        return None


def _id_of(message: Any) -> str | int | None:
    found = message.get("id") if isinstance(message, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def _refusal(code: int, reason: str, request: str | int | None) -> JSONRPCError:
    error = ErrorData(code=code, message=clean(reason)[:LONGEST_REASON])
    return JSONRPCError(jsonrpc="2.0", id=request, error=error)
