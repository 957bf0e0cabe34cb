"""A server on a port of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.conftest import ROOT

COMMAND = ["-c", "from mcp_server.cli.main import main; main()"]


@contextmanager
def serving(argv: list[str], **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process on a free port, and its URL."""
    with subprocess.Popen(
        [sys.executable, *argv], cwd=ROOT, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            url = re.search(r"http://\S+/mcp$", said)
            assert url, said
            yield server, url[0]
        finally:
            server.kill()
