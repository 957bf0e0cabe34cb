"""Time from spawning the server to its `tools/list`, and the size of the schemas.

Limits: 0.6 s (median), 16 KB of input schemas. Run: `python benchmarks/server_start.py [REPEATS]`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 0.6
LIMIT_BYTES = 16 * 1024

Message = dict[str, Any]
HELLO: Message = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "0"},
}


@contextmanager
def server() -> Iterator[subprocess.Popen[bytes]]:
    """A server on pipes, with a state directory of its own."""
    with tempfile.TemporaryDirectory() as state:
        environment = {"PATH": "/usr/bin:/bin", "AOTI_DEBUG_STATE": f"{state}/state"}
        process = subprocess.Popen(
            [sys.executable, "-m", "mcp_server"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process:
            yield process
            process.kill()


def ask(process: subprocess.Popen[bytes], number: int, method: str, params: Message) -> bytes:
    """Send one request and return the line that answers it."""
    assert process.stdin is not None and process.stdout is not None
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return process.stdout.readline()


def measure() -> tuple[float, int]:
    """Seconds to the list of tools, and the bytes of all input schemas in it."""
    begun = time.perf_counter()
    with server() as process:
        ask(process, 1, "initialize", HELLO)
        listed = json.loads(ask(process, 2, "tools/list", {}))
        seconds = time.perf_counter() - begun
    schemas = [tool["inputSchema"] for tool in listed["result"]["tools"]]
    return seconds, len(json.dumps(schemas, separators=(",", ":")))


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    measured = [measure() for _ in range(repeats)]
    times = [seconds for seconds, _ in measured]
    median, best = statistics.median(times), min(times)
    print(f"spawn to tools/list  median {median:.3f} s, best {best:.3f} s; limit {LIMIT_S} s")
    print(f"input schemas        {measured[0][1]} bytes; limit {LIMIT_BYTES}")


if __name__ == "__main__":
    main()
