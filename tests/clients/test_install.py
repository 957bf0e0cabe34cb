"""The real installers and clients: what is installed, and that each starts the server from it.

Skipped unless `make test-clients` installed them. No client is logged in.
"""

import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from mcp_server.operations.table import CORE
from mcp_server.server.app import GUIDES, REFERENCE
from tests.clients.conftest import Clients, checkout_server, tracked
from tests.conftest import ROOT, Zoo
from tests.server.clients import data_of, drive

pytestmark = pytest.mark.clients

LAUNCHER = "tools/aoti_debug.py"


def files_below(folder: Path) -> set[str]:
    """The files below a folder, without Python's bytecode."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name for name in found if "__pycache__" not in name}


def check_server(clients: Clients, *argv: str) -> None:
    """Check that the command starts a server with all tools and guides."""
    server = StdioServerParameters(
        command=shutil.which(argv[0], path=clients.environment()["PATH"]) or argv[0],
        args=list(argv[1:]),
        cwd=clients.work,
        env=clients.environment(),
    )

    async def main() -> None:
        with anyio.fail_after(170):
            async with Client(server) as client:
                tools = {tool.name for tool in (await client.list_tools()).tools}
                assert tools > CORE
                uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
                assert {page.uri for page in (*GUIDES, *REFERENCE)} < uris

    anyio.run(main)


def test_skills_installs_the_whole_folder(clients: Clients, clone: Path) -> None:
    """`skills add` copies every tracked file, and the server starts there without writing into it."""
    agents = ["claude-code", "codex", "gemini-cli", "opencode"]
    clients.run("skills", "add", str(clone), "-y", "-a", *agents)
    installed = clients.work / ".agents" / "skills" / "aoti-debug"
    assert files_below(installed) == tracked(clone)
    assert (clients.work / ".claude" / "skills" / "aoti-debug").resolve() == installed
    check_server(clients, "uv", "run", "--frozen", "--script", str(installed / LAUNCHER), "serve")
    assert files_below(installed) == tracked(clone)


MANIFESTS = {
    ".claude-plugin/plugin.json": "${CLAUDE_PLUGIN_ROOT}",
    "mcp.json": "${PLUGIN_ROOT}",
    "gemini-extension.json": "${extensionPath}",
}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_start_a_server_with_the_users_torch(clients: Clients, zoo: Zoo, manifest: str) -> None:
    """With this Python's environment active there is a verdict. Without it, the error says what to pass."""
    entry = json.loads((ROOT / manifest).read_text())["mcpServers"]["aoti-debug"]
    args = [argument.replace(MANIFESTS[manifest], str(ROOT)) for argument in entry["args"]]
    call = {"package": str(zoo("ranker")), "inputs": str(zoo("ranker").with_name("ranker.bad-index.pt"))}

    def verdict(**env: str) -> dict[str, Any]:
        variables = clients.environment(**env)
        command = shutil.which(entry["command"], path=variables["PATH"]) or entry["command"]
        server = StdioServerParameters(command=command, args=args, cwd=clients.work, env=variables)
        answers = []

        async def talk(client: Client) -> None:
            answers.append(data_of(await client.call_tool("diagnose", {**call, "wait_s": 45})))

        drive(server, talk)
        return answers[0]

    active = verdict(VIRTUAL_ENV=sys.prefix)
    assert (active["outcome"], active["category"]) == ("fault", "index_out_of_bounds")
    bare = verdict()
    assert bare["outcome"] == "inconclusive"
    assert "torch cannot be imported" in bare["summary"] and "pass `python`" in bare["summary"]


def test_the_environment_outlives_an_update(clients: Clients, clone: Path) -> None:
    """With the folder replaced and without network, the server starts: uv keeps the environment."""
    command = ("uv", "run", "--frozen", "--script", str(clients.work / "skill" / LAUNCHER), "serve")
    shutil.copytree(clone, clients.work / "skill")
    check_server(clients, *command)
    shutil.rmtree(clients.work / "skill")
    shutil.copytree(clone, clients.work / "skill")
    check_server(clients, *command[:2], "--offline", *command[2:])


def test_the_lock_is_current(clients: Clients, clone: Path) -> None:
    """uv would write the same lock for the launcher's dependencies."""
    clients.run("uv", "lock", "--check", "--script", str(clone / LAUNCHER))


def test_claude_code(clients: Clients, clone: Path) -> None:
    """Claude Code accepts the installed skill folder as a plugin, and connects to its server."""
    assert "Validation passed" in clients.run("claude", "plugin", "validate", str(clone))
    clients.run("skills", "add", str(clone), "-g", "--copy", "-y", "-a", "claude-code")
    assert "✔ Connected" in line_of(clients.run("claude", "mcp", "list"), "plugin:aoti-debug:aoti-debug")
    listed = clients.run("claude", "plugin", "list")
    assert "aoti-debug@skills-dir" in listed and "✔ loaded" in listed


def test_gemini_cli(clients: Clients, clone: Path) -> None:
    """Gemini CLI validates and installs the folder as an extension, lists its skill and connects."""
    trust = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
    check_server(
        clients, "uv", "run", "--frozen", "--script", str(clone / LAUNCHER), "serve"
    )  # fills uv's cache
    assert "successfully validated" in clients.run("gemini", "extensions", "validate", str(clone), **trust)
    trusted = clients.home / ".gemini" / "trustedFolders.json"
    trusted.parent.mkdir(exist_ok=True)
    trusted.write_text(json.dumps({str(path): "TRUST_FOLDER" for path in (clone, clients.work)}))
    clients.run("gemini", "extensions", "install", str(clone), "--consent", **trust)
    assert "Connected" in line_of(clients.run("gemini", "mcp", "list", **trust), "aoti-debug").split(" - ")
    clients.run("skills", "add", str(clone), "-y", "-a", "gemini-cli")
    assert "aoti-debug [Enabled]" in clients.run("gemini", "skills", "list", **trust)


def test_codex(clients: Clients, clone: Path) -> None:
    """Codex installs the folder as a plugin from a marketplace and knows how to start its server."""
    market = clone.parent / ".claude-plugin" / "marketplace.json"
    market.parent.mkdir()
    entry = {"name": "aoti-debug", "source": "./aoti-debug", "description": "a clone"}
    market.write_text(json.dumps({"name": "local", "owner": {"name": "test"}, "plugins": [entry]}))
    clients.run("codex", "plugin", "marketplace", "add", str(clone.parent))
    clients.run("codex", "plugin", "add", "aoti-debug@local")
    server = line_of(clients.run("codex", "mcp", "list"), "aoti-debug")
    root = clients.home / ".codex" / "plugins" / "cache" / "local" / "aoti-debug" / "0.1.0"
    assert f"uv run --frozen --script {root}/{LAUNCHER} serve" in " ".join(server.split())
    check_server(clients, "uv", "run", "--frozen", "--script", str(root / LAUNCHER), "serve")


def test_opencode(clients: Clients, clone: Path) -> None:
    """opencode lists the skill and connects to the server of its configuration."""
    clients.run("skills", "add", str(clone), "-y", "-a", "opencode")
    entry = {"type": "local", "command": checkout_server(), "enabled": True, "timeout": 60_000}
    (clients.work / "opencode.json").write_text(json.dumps({"mcp": {"aoti-debug": entry}}))
    assert "connected" in line_of(clients.run("opencode", "mcp", "list"), "aoti-debug")
    assert '"name": "aoti-debug"' in clients.run("opencode", "debug", "skill")


def test_the_wheel(clients: Clients, clone: Path) -> None:
    """The wheel has every guide and the native sources; uvx and pipx run its command, and it serves."""
    clients.run("uv", "build", "--wheel", "--out-dir", str(clients.work), str(clone))
    [wheel] = clients.work.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    shared = {name.partition("/share/aoti-debug/")[2] for name in names if ".data/data/share/" in name}
    assert shared == {page.file for page in (*GUIDES, *REFERENCE)}
    assert any(name.endswith(".h") for name in names) and any(name.endswith(".cpp") for name in names)
    assert "Exit codes" in clients.run("uvx", "--from", str(wheel), "aoti-debug", "--help")
    check_server(clients, "uvx", "--from", str(wheel), "aoti-debug", "serve")
    assert "Exit codes" in clients.run("pipx", "run", "--spec", str(wheel), "aoti-debug", "--help")


def test_the_bundle(clients: Clients, clone: Path) -> None:
    """MCPB's own tool validates the bundle, and the server starts from the unpacked files."""
    bundle, unpacked = clients.work / "aoti-debug.mcpb", clients.work / "unpacked"
    clients.run(sys.executable, str(clone / "tools" / "bundle.py"), str(bundle))
    clients.run("mcpb", "unpack", str(bundle), str(unpacked))
    assert "validation passes" in clients.run("mcpb", "validate", str(unpacked / "manifest.json"))
    assert "total files: " in clients.run("mcpb", "pack", str(unpacked), str(clients.work / "again.mcpb"))
    entry = json.loads((unpacked / "manifest.json").read_text())["server"]["mcp_config"]
    argv = [part.replace("${__dirname}", str(unpacked)) for part in (entry["command"], *entry["args"])]
    check_server(clients, *argv)


def line_of(text: str, name: str) -> str:
    """The line with `name`. If there is none, the whole text, for the assertion's message."""
    return next((line for line in text.splitlines() if name in line), text)
