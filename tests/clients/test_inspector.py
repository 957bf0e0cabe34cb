"""A second, independent client: the MCP Inspector's command line (TypeScript) against the real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mcp_server.operations.table import CORE
from tests.clients.conftest import Clients
from tests.conftest import ROOT

pytestmark = pytest.mark.clients

TOOL_IS_ERROR = 5

Inspect = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def inspect(clients: Clients) -> Inspect:
    """Runs one method and returns the exit code and the JSON that was printed."""
    program = clients.node / ".bin" / "mcp-inspector"

    def inspect(*arguments: str) -> tuple[int, dict[str, Any]]:
        argv = [str(program), "--cli", sys.executable, "-m", "mcp_server", "--format", "json", *arguments]
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env=clients.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, json.loads(done.stdout)["result"]

    return inspect


def test_schemas_are_portable(inspect: Inspect) -> None:
    """The strict linter of schemas has no complaint, and the tools of the default list are there."""
    code, result = inspect("--method", "tools/list", "--strict")
    assert code == 0
    assert {tool["name"] for tool in result["tools"]} >= CORE


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_calls(inspect: Inspect, era: str) -> None:
    """A call answers in both channels alike; an unknown argument is an error result."""
    call = ("--protocol-era", era, "--method", "tools/call", "--tool-name", "explain_error")
    code, result = inspect(
        *call, "--tool-arg", "text=RuntimeError: CUDA error: an illegal memory access was encountered"
    )
    assert code == 0
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert "illegal_memory_access" in result["structuredContent"]["candidates"]
    code, result = inspect(*call, "--tool-args-json", '{"txt": "x"}')
    assert code == TOOL_IS_ERROR
    assert "did you mean 'text'?" in result["content"][0]["text"]


def test_resources(inspect: Inspect) -> None:
    """Guides and flags can be read."""
    _, listed = inspect("--method", "resources/list")
    uris = [resource["uri"] for resource in listed["resources"]]
    assert "aoti-debug://flags" in uris and "aoti-debug://guides/SKILL.md" in uris
    _, flags = inspect("--method", "resources/read", "--uri", "aoti-debug://flags")
    assert "TORCHINDUCTOR_NAN_ASSERTS" in flags["contents"][0]["text"]
