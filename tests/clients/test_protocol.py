"""Independent clients of the protocol: the official conformance suite, and the MCP Inspector.

The suite tests both eras over HTTP, with the server's class on the SDK's transport. `conformance.yml` lists
by reason the scenarios that fail because the server lacks what they need. An entry that passes fails the
run as well. Skipped unless `make test-clients` installed it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcp_server.operations.table import CORE
from tests.clients.conftest import Clients
from tests.conftest import ROOT
from tests.support.command import output_of
from tests.support.servers import serving_on_http

pytestmark = [pytest.mark.clients, pytest.mark.slow]

LACKING = yaml.safe_load(Path(__file__).with_name("conformance.yml").read_text())
SUITES = {
    "0.1.16": ("@modelcontextprotocol/conformance", ()),
    "2025-11-25": ("conformance-next", ("--requirements", "2025-11-25")),
    "2026-07-28": ("conformance-next", ("--requirements", "2026-07-28")),
}


@pytest.mark.parametrize("suite", SUITES)
def test_the_conformance_suite(suite: str, clients: Clients, tmp_path: Path) -> None:
    """Only scenarios that the baseline lists fail."""
    with serving_on_http(["-m", "tests.server.suite_server", str(tmp_path / "state")]) as (_, url):
        check(clients, suite, url, *LACKING["suites"][suite]["reasons"])


def check(clients: Clients, suite: str, url: str, *reasons: str) -> None:
    """Run the suite against the URL."""
    package, options = SUITES[suite]
    run_suite(clients, package, url, *options, reasons=reasons)


def run_suite(clients: Clients, package: str, url: str, *options: str, reasons: tuple[str, ...]) -> None:
    script = str(clients.node / package / "dist" / "index.js")
    failing = [scenario for reason in reasons for scenario in LACKING["reasons"][reason]]
    baseline = clients.home / "expected-failures.yml"
    baseline.write_text(json.dumps({"server": failing}))  # JSON is YAML
    expected = ("--expected-failures", str(baseline))
    assert "passed" in clients.run("node", script, "server", "--url", url, *options, *expected)


# The MCP Inspector, an independent client in TypeScript, against the real server.

TOOL_IS_ERROR = 5

Inspect = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def inspect(clients: Clients) -> Inspect:
    """A function that calls one method and returns the exit code and the printed JSON."""
    program = clients.node / ".bin" / "mcp-inspector"

    def inspect(*arguments: str) -> tuple[int, dict[str, Any]]:
        argv = [str(program), "--cli", sys.executable, "-m", "mcp_server", "--format", "json", *arguments]
        done = output_of(argv, cwd=ROOT, env=clients.environment(), timeout=120)
        return done.returncode, json.loads(done.stdout)["result"]

    return inspect


def test_schemas_are_portable(inspect: Inspect) -> None:
    """The strict schema linter has no complaint, and the default tools are listed."""
    code, result = inspect("--method", "tools/list", "--strict")
    assert code == 0
    assert {tool["name"] for tool in result["tools"]} >= CORE


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_calls(inspect: Inspect, era: str) -> None:
    """Both channels of an answer are equal. An unknown argument gives an error result."""
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
    """Guides can be read."""
    _, listed = inspect("--method", "resources/list")
    uris = [resource["uri"] for resource in listed["resources"]]
    assert "aoti-debug://guides/flags.md" in uris and "aoti-debug://guides/SKILL.md" in uris
    _, flags = inspect("--method", "resources/read", "--uri", "aoti-debug://guides/flags.md")
    assert "TORCHINDUCTOR_NAN_ASSERTS" in flags["contents"][0]["text"]
