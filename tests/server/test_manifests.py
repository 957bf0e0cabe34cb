"""The manifests of all clients agree with pyproject.toml and with each other."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from mcp_server import __version__
from mcp_server.server.app import GUIDES, REFERENCE
from tests.conftest import ROOT
from tests.support.command import output_of
from tools.manifests import project, registry_server

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LAUNCHER = "tools/aoti_debug.py"
ROOTS = {
    ".claude-plugin/plugin.json": "${CLAUDE_PLUGIN_ROOT}",
    ".cursor-plugin/mcp.json": "${CURSOR_PLUGIN_ROOT}",
    "mcp.json": "${PLUGIN_ROOT}",
    "gemini-extension.json": "${extensionPath}",
}
FILES = (".claude-plugin/plugin.json", ".cursor-plugin/plugin.json", "plugin.json", "gemini-extension.json")


def test_they_are_up_to_date() -> None:
    """`python tools/manifests.py` would change nothing."""
    argv = [sys.executable, str(ROOT / "tools" / "manifests.py"), "--check"]
    done = output_of(argv)
    assert done.returncode == 0, done.stdout


def test_a_checkout_that_is_opened_starts_no_server() -> None:
    """Claude Code reads `.mcp.json` in every opened folder, and there knows no plugin's root."""
    assert not (ROOT / ".mcp.json").exists()


def test_one_version() -> None:
    """The package, its metadata and every manifest have the same version."""
    versions = {json.loads((ROOT / file).read_text())["version"] for file in FILES}
    assert versions == {__version__}


def test_limits_of_the_registry() -> None:
    """The registry limits the description to 100 characters, and wants its name in the README."""
    server = registry_server(project())
    assert len(server["description"]) <= 100
    assert f"mcp-name: {server['name']}" in (ROOT / "README.md").read_text()


def test_the_registry_s_entry_is_complete() -> None:
    """Repository, website and icon are this repository's, which has the icon's file."""
    server = registry_server(project())
    assert server["repository"] == {"url": server["websiteUrl"], "source": "github"}
    (icon,) = server["icons"]
    assert (ROOT / icon["src"].partition("/main/")[2]).is_file()


def test_a_release_has_its_bundle(tmp_path: Path) -> None:
    """The registry's entry of a release has the bundle's address and the digest of its bytes."""
    bundle, target = tmp_path / "aoti-debug.mcpb", tmp_path / "server.json"
    bundle.write_bytes(b"a bundle")
    argv = [sys.executable, str(ROOT / "tools" / "manifests.py"), "--release", str(bundle), str(target)]
    subprocess.run(argv, check=True)
    package = json.loads(target.read_text())["packages"][-1]
    assert package["registryType"] == "mcpb"
    assert package["fileSha256"] == hashlib.sha256(b"a bundle").hexdigest()
    assert package["identifier"].endswith(f"/releases/download/v{__version__}/aoti-debug.mcpb")


def test_the_marketplace_has_the_plugin() -> None:
    """The repository is a marketplace with one plugin, at its root."""
    made = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())
    (plugin,) = made["plugins"]
    assert (plugin["name"], plugin["source"]) == ("aoti-debug", "./")


def test_one_click_links_start_the_server() -> None:
    """The links in docs/install.md contain the command `aoti-debug serve`."""
    text = (ROOT / "docs" / "install.md").read_text()
    links = re.findall(r"\((https://\S+[?&]config=\S+)\)", text)
    configs = [parse_qs(urlsplit(link).query)["config"][0] for link in links]
    assert len(configs) == 2
    for config in configs:
        entry = json.loads(config if config.startswith("{") else base64.b64decode(config))
        assert (entry["command"], entry["args"]) == ("aoti-debug", ["serve"])


def test_one_owner() -> None:
    """Every address of the repository has the owner that pyproject.toml names."""
    owner = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["aoti-debug"]["owner"]
    texts = [*ROOT.glob("*.md"), *ROOT.glob("*.json"), *(ROOT / "docs").rglob("*.md")]
    texts += [*(ROOT / ".github").rglob("*.yml"), ROOT / "pyproject.toml"]
    address = re.compile(r"github\.com/([\w-]+)/aoti-debug\b")
    found = {each for text in texts for each in address.findall(text.read_text())}
    assert found == {owner}


def test_the_server_starts_from_the_installed_folder() -> None:
    """Each client that installs the folder starts its launcher, and uv keeps the environment in its cache."""
    for file, root in ROOTS.items():
        entry = json.loads((ROOT / file).read_text())["mcpServers"]["aoti-debug"]
        assert entry["command"] == "uv" and "env" not in entry
        assert entry["args"] == ["run", "--frozen", "--script", f"{root}/{LAUNCHER}", "serve"]
    assert (ROOT / LAUNCHER).is_file()


def test_the_bundle_is_the_tracked_server(tmp_path: Path) -> None:
    """The MCPB bundle has launcher, lock, guides and the version; packed twice it has the same bytes."""
    packed = [tmp_path / "a.mcpb", tmp_path / "b.mcpb"]
    for target in packed:
        subprocess.run([sys.executable, str(ROOT / "tools" / "bundle.py"), str(target)], check=True)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    with zipfile.ZipFile(packed[0]) as bundle:
        names, manifest = set(bundle.namelist()), json.loads(bundle.read("manifest.json"))
    assert {
        LAUNCHER,
        f"{LAUNCHER}.lock",
        "mcp_server/server/app.py",
        *(page.place for page in (*GUIDES, *REFERENCE)),
    } <= names
    assert not any(name.startswith(("tests/", "benchmarks/", ".")) for name in names)
    assert manifest["version"] == __version__
    assert manifest["server"]["mcp_config"]["args"][-2:] == [f"${{__dirname}}/{LAUNCHER}", "serve"]


def test_the_lock_fits_the_dependencies() -> None:
    """`--frozen` does not check whether the lock is stale."""
    locked = tomllib.loads((ROOT / f"{LAUNCHER}.lock").read_text())["manifest"]["requirements"]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert sorted(need["name"] + need["specifier"] for need in locked) == sorted(wanted)


def test_the_launcher_is_the_command_line(tmp_path: Path) -> None:
    """From any folder, the launcher runs the package beside it, and no installed one."""
    argv = [sys.executable, str(ROOT / LAUNCHER), "--version"]
    done = output_of(argv, cwd=tmp_path, check=True)
    assert done.stdout == f"{__version__}\n"


def test_codex_hands_the_variables_of_cuda_on() -> None:
    """Codex filters the environment; docs/install.md names what a workload needs for its GPU."""
    block = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "install.md").read_text(), re.DOTALL)
    assert block
    server = tomllib.loads(block[1])["mcp_servers"]["aoti-debug"]
    needed = {"CUDA_HOME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CONDA_PREFIX", "VIRTUAL_ENV"}
    assert needed | {"AOTI_DEBUG_PYTHON"} <= set(server["env_vars"])
