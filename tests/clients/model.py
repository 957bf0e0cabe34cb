"""A model on loopback that makes given calls, waits for the job of each while it runs, then says "done".

It speaks what Claude Code (Anthropic's messages), Codex (OpenAI's responses), opencode (OpenAI's chat) and
Gemini CLI ask for, all as event streams, and keeps every tool result that the client shows it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
Events = list[Json]
Call = tuple[str, Json]
USAGE = {"input_tokens": 1, "output_tokens": 1}


class Model:
    """Makes `calls` in turn. `seen` holds the results that it was shown, `told` the whole last request."""

    def __init__(self, *calls: Call) -> None:
        self.calls = calls
        self.seen: list[str] = []
        self.told = ""
        self.url = ""

    def next_call(self, results: list[str]) -> Call | None:
        """The tool and its arguments, or None when the work is done."""
        self.seen = results
        last = _data(results[-1]) if results else {}
        if last.get("state") == "running":
            return "wait_job", {"job_id": last["job_id"], "wait_s": 45}
        answered = sum(data.get("state") != "running" for data in self.data())
        return self.calls[answered] if answered < len(self.calls) else None

    def data(self) -> list[Json]:
        """What the model was shown, as data."""
        return [_data(text) for text in self.seen]


def _data(text: str) -> Json:
    """The JSON in a tool result, between what the client writes around it; {} when there is none."""
    start = text.find("{")
    found: Json = json.JSONDecoder().raw_decode(text, start)[0] if start >= 0 else {}
    return found


@contextmanager
def served(model: Model) -> Iterator[Model]:
    """The model behind a free port of loopback; `url` is set while it serves."""

    class Handler(_Handler):
        asked = model

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    asked: Model

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        answer = next((answer for end, answer in WIRES.items() if path.endswith(end)), None)
        if answer is None:
            self.send_error(404)
            return
        self._stream(answer(self.asked, json.loads(body)))

    def do_GET(self) -> None:
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: pytest shows the client's own output."""

    def _stream(self, events: Events) -> None:
        text = "".join(map(_event, events))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def _event(event: Json) -> str:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


def anthropic(model: Model, request: Json) -> Events:
    """Claude Code's side questions (a title, a summary) come without tools and get a text."""
    results = [text for message in request["messages"] for text in _anthropic_results(message)]
    call = None
    tools = [tool["name"] for tool in request.get("tools", [])]
    if tools:
        model.told = json.dumps(request)
        call = model.next_call(results)
    block: Json = {"type": "text", "text": "done"}
    if call:
        name = next(tool for tool in tools if tool.endswith(f"__{call[0]}"))
        block = {"type": "tool_use", "id": f"call_{len(results)}", "name": name, "input": {}}
    return _anthropic_events(block, call[1] if call else None)


def _anthropic_results(message: Json) -> Iterator[str]:
    blocks = message["content"] if isinstance(message["content"], list) else []
    for block in blocks:
        if block["type"] == "tool_result":
            content = block["content"]
            yield content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _anthropic_events(block: Json, arguments: Json | None) -> Events:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "fake", "content": []}
    start = {**message, "stop_reason": None, "stop_sequence": None, "usage": USAGE}
    delta: Json = {"type": "text_delta", "text": "done"}
    if arguments is not None:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    opening = block if arguments is not None else {**block, "text": ""}
    reason = "end_turn" if arguments is None else "tool_use"
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": opening},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": USAGE},
        {"type": "message_stop"},
    ]


def openai(model: Model, request: Json) -> Events:
    model.told = json.dumps(request)
    outputs = [item["output"] for item in request["input"] if item["type"] == "function_call_output"]
    results = [
        text if isinstance(text, str) else "".join(p.get("text", "") for p in text) for text in outputs
    ]
    call = model.next_call(results)
    item: Json = {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "content": [{"type": "output_text", "text": "done"}],
    }
    if call:
        item = {
            "type": "function_call",
            "id": f"fc_{len(results)}",
            "call_id": f"call_{len(results)}",
            "arguments": json.dumps(call[1]),
            **_openai_name(request["tools"], call[0]),
        }
    usage = {**USAGE, "total_tokens": 2}
    return [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "output": [item], "usage": usage}},
    ]


def _openai_name(offered: list[Json], name: str) -> Json:
    """Codex groups the tools of a server in a namespace."""
    for entry in offered:
        if name in {tool["name"] for tool in entry.get("tools", [])}:
            return {"namespace": entry["name"], "name": name}
    raise LookupError(f"{name} is not offered")


def chat(model: Model, request: Json) -> Events:
    """opencode asks for a title without tools."""
    results = [_chat_text(message) for message in request["messages"] if message["role"] == "tool"]
    names = [tool["function"]["name"] for tool in request.get("tools", [])]
    call = _offered(model, request, names, results)
    delta: Json = {"role": "assistant", "content": "done"}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        calls = [{"index": 0, "id": f"call_{len(results)}", "type": "function", "function": function}]
        delta = {"role": "assistant", "tool_calls": calls}
    choices = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"},
    ]
    about = {"id": "chat_1", "object": "chat.completion.chunk", "created": 0, "model": "fake"}
    return [{**about, "choices": [choice]} for choice in choices]


def _chat_text(message: Json) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def gemini(model: Model, request: Json) -> Events:
    """A result comes as the text that Gemini CLI makes of it."""
    parts = [part for content in request["contents"] for part in content["parts"]]
    answers = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
    results = [str(answer.get("output") or json.dumps(answer)) for answer in answers]
    declared = [entry for tool in request.get("tools", []) for entry in tool.get("functionDeclarations", [])]
    call = _offered(model, request, [entry["name"] for entry in declared], results)
    part: Json = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": "done"}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return [
        {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}
    ]


def _offered(model: Model, request: Json, names: list[str], results: list[str]) -> Call | None:
    """The next call, under the name that the client gives the tool; None where it offers no tools."""
    if not names:
        return None
    model.told = json.dumps(request)
    call = model.next_call(results)
    return (next(name for name in names if name.endswith(f"_{call[0]}")), call[1]) if call else None


WIRES: dict[str, Callable[[Model, Json], Events]] = {
    "/v1/messages": anthropic,
    "/v1/responses": openai,
    "/chat/completions": chat,
    ":streamGenerateContent": gemini,
}
