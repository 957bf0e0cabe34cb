"""The official conformance suite against the server, on HTTP and through a bridge on stdio, for both eras.

A baseline lists the scenarios that fail since the server does not offer what they need, each with its
reason. An entry that begins to pass fails the run, too. Skipped unless `make test-clients` installed it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients.bridge import bridged
from tests.clients.conftest import Clients
from tests.server.test_http import serving

pytestmark = [pytest.mark.clients, pytest.mark.slow]

BASELINES = Path(__file__).with_name("conformance")
SUITES = {
    "0.1.16": ("@modelcontextprotocol/conformance", (), "released.yml"),
    "2025-11-25": ("conformance-next", ("--requirements", "2025-11-25"), "2025-11-25.yml"),
    "2026-07-28": ("conformance-next", ("--requirements", "2026-07-28"), "2026-07-28.yml"),
}
TASKS = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
)


@pytest.mark.parametrize("suite", SUITES)
def test_on_http(suite: str, clients: Clients, tmp_path: Path) -> None:
    """Nothing fails but what the baseline lists."""
    with serving(["-m", "tests.server.suite_server", str(tmp_path / "state"), "--http"]) as (_, url):
        check(clients, suite, url)


@pytest.mark.parametrize("suite", SUITES)
def test_on_stdio(suite: str, clients: Clients, tmp_path: Path) -> None:
    """The same through a bridge, which has none of what HTTP adds to the protocol."""
    argv = [sys.executable, "-m", "tests.server.suite_server", str(tmp_path / "state")]
    with bridged(argv) as url:
        check(clients, suite, url, "stdio-")


@pytest.mark.parametrize("scenario", TASKS)
def test_tasks(scenario: str, clients: Clients, tmp_path: Path) -> None:
    """The tasks extension as its scenarios have it; those that ask the user something do not apply."""
    with serving(["-m", "tests.server.suite_server", str(tmp_path / "state"), "--http"]) as (_, url):
        run_suite(clients, "conformance-next", url, "--scenario", scenario, baseline="tasks.yml")


def check(clients: Clients, suite: str, url: str, transport: str = "") -> None:
    """Run the suite against the URL."""
    package, options, baseline = SUITES[suite]
    run_suite(clients, package, url, *options, baseline=f"{transport}{baseline}")


def run_suite(clients: Clients, package: str, url: str, *options: str, baseline: str) -> None:
    script = str(clients.node / package / "dist" / "index.js")
    expected = ("--expected-failures", str(BASELINES / baseline))
    assert "passed" in clients.run("node", script, "server", "--url", url, *options, *expected)
