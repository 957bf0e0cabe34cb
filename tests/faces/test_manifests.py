"""The manifests of all clients agree with pyproject.toml and with each other."""

from __future__ import annotations

import json
import subprocess
import sys

from mcp_server import __version__
from tests.faces.clients import ROOT

FILES = (".claude-plugin/plugin.json", "plugin.json", "gemini-extension.json", "server.json")


def test_they_are_up_to_date() -> None:
    """`python tools/manifests.py` would change nothing."""
    argv = [sys.executable, str(ROOT / "tools" / "manifests.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_one_version() -> None:
    """The package, its metadata and every manifest carry the same version."""
    versions = {json.loads((ROOT / file).read_text())["version"] for file in FILES}
    assert versions == {__version__}


def test_limits_of_the_registry() -> None:
    """The registry takes 100 characters of description, and wants its name in the README."""
    server = json.loads((ROOT / "server.json").read_text())
    assert len(server["description"]) <= 100
    assert f"mcp-name: {server['name']}" in (ROOT / "README.md").read_text()


def test_the_environment_is_outside_of_the_skill_folder() -> None:
    """An update deletes the folder, so no manifest lets uv put its environment there."""
    for file in (".mcp.json", "mcp.json"):
        entry = json.loads((ROOT / file).read_text())["mcpServers"]["aoti-debug"]
        assert "DATA" in entry["env"]["UV_PROJECT_ENVIRONMENT"]
