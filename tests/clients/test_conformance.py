"""The official conformance suite against the server on HTTP, for both eras.

`conformance.yml` lists the scenarios that fail since the server does not offer what they need, by reason. An
entry that begins to pass fails the run, too. Skipped unless `make test-clients` installed it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.clients.conftest import Clients
from tests.support.http import serving

pytestmark = [pytest.mark.clients, pytest.mark.slow]

LACKING = yaml.safe_load(Path(__file__).with_name("conformance.yml").read_text())
SUITES = {
    "0.1.16": ("@modelcontextprotocol/conformance", ()),
    "2025-11-25": ("conformance-next", ("--requirements", "2025-11-25")),
    "2026-07-28": ("conformance-next", ("--requirements", "2026-07-28")),
}


@pytest.mark.parametrize("suite", SUITES)
def test_on_http(suite: str, clients: Clients, tmp_path: Path) -> None:
    """Nothing fails but what the baseline lists."""
    with serving(["-m", "tests.server.suite_server", str(tmp_path / "state"), "--http"]) as (_, url):
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
