"""Writes manifests, the launcher's dependencies and the owner's name in texts from `pyproject.toml`.

`--check` only compares. `--release BUNDLE TARGET` writes the registry's entry of a release.
After a change of dependencies: run this, `uv lock --script tools/aoti_debug.py`, and this again.
"""

import base64
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
NAME = "aoti-debug"
LAUNCHER = "tools/aoti_debug.py"
LOCK = "tools/aoti_debug.py.lock"
ELSEWHERE = re.compile(
    r"[-_](?:win32|win_amd64|win_arm64|i686|ppc64|ppc64le|s390x|armv\w+|riscv64|loongarch64)\.whl"
    r"|macosx|android|[-_]ios_|graalpy|emscripten|pyodide|musllinux|-pp\d|-cp\d+t-|abi3t"
    r"|cp311-abi3|abi3-manylinux_2_"
)
"""Wheels for systems without AOTInductor (torch's wheels with it are for Linux on x86-64 and 64-bit ARM), for
interpreters that uv takes only on request (PyPy, GraalPy and Python without its lock), and those beside which
another wheel runs on every Python and every Linux that they run on."""
SOURCE_BESIDE_WHEEL = re.compile(r"sdist = .*\n(?=wheels = \[)")
UNNEEDED = re.compile(r', (?:upload-time = "[^"]*"|size = \d+)')  # uv compares digests
TITLE = "AOTInductor debugger"
ICON = "docs/icon.svg"
OWNED = ("README.md", "pyproject.toml", "docs/install.md", ".github/ISSUE_TEMPLATE/config.yml")
"""Texts that name the repository or the badges, whose owner is written here too."""
GEMINI_CALL_MS = 600_000
"""Gemini CLI's own limit of one call."""

Manifest = dict[str, Any]


def project() -> Mapping[str, Any]:
    """The `[project]` table: the source of every fact that manifests repeat."""
    return dict(_tables()["project"])


def owner() -> str:
    """The owner of the public repository: `owner` of `[tool.aoti-debug]`."""
    return str(_tables()["tool"][NAME]["owner"])


def repository() -> str:
    return f"https://github.com/{owner()}/{NAME}"


def registry_name() -> str:
    """The registry checks that the publisher owns the account."""
    return f"io.github.{owner()}/{NAME}"


def _tables() -> Mapping[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file))


def manifests() -> dict[str, Manifest]:
    """Every manifest by its path."""
    facts = project()
    return {
        ".claude-plugin/plugin.json": claude_plugin(facts),
        ".claude-plugin/marketplace.json": marketplace(facts),
        ".cursor-plugin/plugin.json": cursor_plugin(facts),
        ".cursor-plugin/mcp.json": servers("${CURSOR_PLUGIN_ROOT}"),
        "plugin.json": agent_plugin(facts),
        "mcp.json": agent_servers(),
        "gemini-extension.json": gemini_extension(facts),
    }


def claude_plugin(facts: Mapping[str, Any]) -> Manifest:
    """It has the server, since a `.mcp.json` would start one also for whoever opens the checkout."""
    return {**_common(facts), **_origin(facts), **servers("${CLAUDE_PLUGIN_ROOT}")}


def marketplace(facts: Mapping[str, Any]) -> Manifest:
    """The repository as a marketplace of one plugin: `claude plugin marketplace add OWNER/aoti-debug`."""
    plugin = {"name": NAME, "source": "./", "description": facts["description"], "license": facts["license"]}
    return {"name": NAME, "owner": {"name": facts["authors"][0]["name"]}, "plugins": [plugin]}


def cursor_plugin(facts: Mapping[str, Any]) -> Manifest:
    """Cursor's own format (cursor.com/docs/reference/plugins): the root is the one skill."""
    made = {**_common(facts), **_origin(facts), "displayName": TITLE, "logo": ICON}
    return {**made, "skills": ["./"], "mcpServers": "./.cursor-plugin/mcp.json"}


def _origin(facts: Mapping[str, Any]) -> Manifest:
    return {
        "author": {"name": facts["authors"][0]["name"]},
        "homepage": repository(),
        "repository": repository(),
        "keywords": facts["keywords"],
    }


def agent_plugin(facts: Mapping[str, Any]) -> Manifest:
    """Agent Plugins 1.0.0: a closed schema."""
    return {"$schema": "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json", **_common(facts)}


def servers(root: str) -> Manifest:
    """The server from the folder `root`. uv keeps its environment elsewhere: an update deletes the folder.

    `--frozen` takes the versions from the lock beside the launcher and asks no index: once the packages are
    in uv's cache, the server starts without network.
    """
    args = ["run", "--frozen", "--script", f"{root}/{LAUNCHER}", "serve"]
    return {"mcpServers": {NAME: {"command": "uv", "args": args}}}


def agent_servers() -> Manifest:
    schema = "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json"
    entry = {"type": "stdio", **servers("${PLUGIN_ROOT}")["mcpServers"][NAME]}
    return {"$schema": schema, "mcpServers": {NAME: entry}}


def gemini_extension(facts: Mapping[str, Any]) -> Manifest:
    """A time limit is set: `gemini mcp list` else gives a server 5 s, and a first start loads packages."""
    common = {key: value for key, value in _common(facts).items() if key != "license"}
    entry = {**servers("${extensionPath}")["mcpServers"][NAME], "timeout": GEMINI_CALL_MS}
    return {**common, "mcpServers": {NAME: entry}, "contextFileName": "SKILL.md"}


def registry_server(facts: Mapping[str, Any]) -> Manifest:
    """The MCP registry's format of 2025-12-11; its description has at most 100 characters."""
    package = {
        "registryType": "pypi",
        "identifier": facts["name"],
        "version": facts["version"],
        "runtimeHint": "uvx",
        "transport": {"type": "stdio"},
        "packageArguments": [{"type": "positional", "value": "serve"}],
        "environmentVariables": [_variable(name, text) for name, text in VARIABLES.items()],
    }
    return {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": registry_name(),
        "title": TITLE,
        "description": "Diagnoses PyTorch AOTInductor failures by running the workload",
        "version": facts["version"],
        "websiteUrl": repository(),
        "repository": {"url": repository(), "source": "github"},
        "icons": [
            {
                "src": f"https://raw.githubusercontent.com/{owner()}/{NAME}/main/{ICON}",
                "mimeType": "image/svg+xml",
                "sizes": ["any"],
            }
        ],
        "packages": [package],
    }


def released(facts: Mapping[str, Any], bundle: Path) -> Manifest:
    """The registry's entry of a release, with its MCPB bundle, whose digest a client compares."""
    entry = registry_server(facts)
    package = {
        "registryType": "mcpb",
        "identifier": f"{repository()}/releases/download/v{facts['version']}/{bundle.name}",
        "version": facts["version"],
        "fileSha256": hashlib.sha256(bundle.read_bytes()).hexdigest(),
        "transport": {"type": "stdio"},
    }
    return {**entry, "packages": [*entry["packages"], package]}


def deep_links() -> dict[str, str]:
    """The address that a client opens to add the server as `aoti-debug serve`, by client."""
    entry = {"command": NAME, "args": ["serve"]}
    code = base64.b64encode(json.dumps(entry, separators=(",", ":")).encode()).decode()
    stdio = quote(json.dumps({"type": "stdio", **entry}, separators=(",", ":")), safe="")
    return {
        "Cursor": f"https://cursor.com/en/install-mcp?name={NAME}&config={quote(code, safe='')}",
        "VS Code": f"https://vscode.dev/redirect/mcp/install?name={NAME}&config={stdio}",
    }


VARIABLES = {
    "AOTI_DEBUG_PYTHON": "Interpreter that has torch",
    "AOTI_DEBUG_STATE": "Directory for the files of jobs",
    "AOTI_DEBUG_LAUNCHER": "Put before every program that is run, such as srun --gpus=1",
    "CUDA_HOME": "Root of the CUDA toolkit",
}


def _variable(name: str, text: str) -> Manifest:
    return {"name": name, "description": text, "isRequired": False, "isSecret": False, "format": "string"}


def _common(facts: Mapping[str, Any]) -> Manifest:
    return {key: facts[key] for key in ("name", "version", "description", "license")}


def launcher(facts: Mapping[str, Any]) -> str:
    """The launcher with the dependencies in its header (PEP 723), which uv reads."""
    text = (ROOT / LAUNCHER).read_text(encoding="utf-8")
    needs = ["requires-python = " + json.dumps(facts["requires-python"]), "dependencies = ["]
    needs += [f"  {json.dumps(dependency)}," for dependency in facts["dependencies"]]
    needs += ["]", "[tool.uv]", 'fork-strategy = "fewest"  # one version for all Pythons: a short lock']
    header = "\n".join(f"# {line}" for line in ["/// script", *needs, "///"])
    return re.sub(r"# /// script\n.*?\n# ///", lambda _: header, text, flags=re.DOTALL)


def lock() -> str:
    """The launcher's lock without what nobody can use here, more than half of it.

    A package that has wheels is never built from its source.
    """
    text = UNNEEDED.sub("", (ROOT / LOCK).read_text(encoding="utf-8"))
    lines = [
        line
        for line in text.split("\n")
        if not (".whl" in line and ELSEWHERE.search(line.split(", hash")[0]))
    ]
    return SOURCE_BESIDE_WHEEL.sub("", "\n".join(lines))


def owned(path: str) -> str:
    """The text of a file with the owner's name in its addresses, and in the README's registry name."""
    text = (ROOT / path).read_text(encoding="utf-8")
    text = re.sub(r"<!-- mcp-name: .* -->", f"<!-- mcp-name: {registry_name()} -->", text)
    text = re.sub(rf"(?<=github\.com/)[\w-]+(?=/{NAME}\b)", owner(), text)
    return re.sub(rf"(?<=https://)[\w-]+(?=\.github\.io/{NAME}\b)", owner(), text)


def files() -> dict[str, str]:
    """The text of every file that is made from the project's table, by path."""
    texts = {path: json.dumps(made, indent=2, ensure_ascii=False) for path, made in manifests().items()}
    written = {path: text + "\n" for path, text in texts.items()}
    return {**written, LAUNCHER: launcher(project()), LOCK: lock(), **{path: owned(path) for path in OWNED}}


def stale() -> list[str]:
    """Paths of files that differ from what they should be."""
    return [path for path, text in files().items() if not _holds(ROOT / path, text)]


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main() -> int:
    if "--check" in sys.argv[1:]:
        print("\n".join(f"stale: {path}" for path in stale()) or "all manifests agree with pyproject.toml")
        return 1 if stale() else 0
    if "--release" in sys.argv[1:]:
        bundle, target = sys.argv[sys.argv.index("--release") + 1 :]
        Path(target).write_text(json.dumps(released(project(), Path(bundle)), indent=2) + "\n")
        return 0
    for path, text in files().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
