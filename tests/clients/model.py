"""A model on loopback that makes given calls, waits for the job of each while it runs, then says "done".

It speaks what Claude Code (Anthropic's messages) and Codex (OpenAI's responses) ask for, both as event
streams, and keeps every tool result that the client shows it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
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
        answer = {"/v1/messages": anthropic, "/v1/responses": openai}.get(path)
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
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


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
