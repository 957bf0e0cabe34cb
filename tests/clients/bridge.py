"""HTTP in front of a server on stdio: the official suite speaks HTTP only.

Messages pass as they are, except that ids are made unique, since requests of several clients share one
server. A session is a server of its own; requests without one (the stateless era) share one.
"""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]
STATELESS = ""
SESSION = "mcp-session-id"
ANSWER_S = 20
DISCOVER: Message = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "bridge", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}


class Connection:
    """A server process, and who waits for which of its answers."""

    def __init__(self, argv: list[str]) -> None:
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ids = itertools.count(1)
        self._waiting: dict[int, queue.Queue[Message]] = {}
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def tell(self, message: Message) -> None:
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def ask(self, message: Message) -> Iterator[Message]:
        """What the server sends until it has answered, the answer last and under the caller's id."""
        number, inbox = next(self._ids), queue.Queue[Message]()
        self._waiting[number] = inbox
        self.tell({**message, "id": number})
        while "id" not in (received := inbox.get(timeout=ANSWER_S)):
            yield received
        del self._waiting[number]
        yield {**received, "id": message["id"]}

    def hang_up(self) -> None:
        """Close the server's input; it ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        self.hang_up()
        self._process.wait(timeout=30)
        self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()

    def _read(self) -> None:
        """Answers go to who asked; notifications (progress) to everyone who waits."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            number = message.get("id")
            inboxes = [self._waiting[number]] if number in self._waiting else list(self._waiting.values())
            for inbox in inboxes:
                inbox.put(message)


class Connections:
    """One server for all stateless requests, one for each session, and one that is ready for the next."""

    def __init__(self, argv: list[str]) -> None:
        self._argv = argv
        self._all: list[Connection] = []
        self.known = {STATELESS: self._start()}
        list(self.known[STATELESS].ask(DISCOVER))  # the first request fixes the era of a connection
        self._spare = self._start()

    def open(self) -> str:
        """The id of a new session."""
        session = uuid.uuid4().hex
        self.known[session], self._spare = self._spare, self._start()
        return session

    def end(self, session: str) -> bool:
        """Whether there was such a session."""
        connection = self.known.pop(session, None) if session else None
        if connection:
            connection.hang_up()
        return connection is not None

    def close(self) -> None:
        for connection in self._all:
            connection.close()

    def _start(self) -> Connection:
        connection = Connection(self._argv)
        self._all.append(connection)
        return connection


@contextmanager
def bridged(argv: list[str]) -> Iterator[str]:
    """The URL of a bridge to servers that `argv` starts."""
    started = Connections(argv)

    class Handler(_Handler):
        connections = started

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        started.close()


class _Handler(BaseHTTPRequestHandler):
    connections: Connections

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        session = self.headers.get(SESSION, STATELESS)
        if message.get("method") == "initialize":
            session = self.connections.open()
        connection = self.connections.known.get(session)
        if connection is None:
            self._head(404, STATELESS)
        elif "id" in message and "method" in message:
            self._stream(session, connection.ask(message))
        else:
            connection.tell(message)
            self._head(202, session)

    def do_GET(self) -> None:
        self._head(405, STATELESS)

    def do_DELETE(self) -> None:
        self._head(200 if self.connections.end(self.headers.get(SESSION, STATELESS)) else 404, STATELESS)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def _stream(self, session: str, messages: Iterator[Message]) -> None:
        self._head(200, session)
        for message in messages:
            self.wfile.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())
            self.wfile.flush()

    def _head(self, status: int, session: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "text/event-stream")
        if session:
            self.send_header(SESSION, session)
        self.end_headers()
