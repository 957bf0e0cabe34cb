"""Packs the server as an MCPB bundle, which desktop clients install: `python tools/bundle.py [TARGET.mcpb]`.

Its manifest repeats the facts of `manifests.py`. The bundle holds the guides and what the launcher needs; uv
fetches the launcher's dependencies at the first start. The Python with torch stays the user's own: the client
asks for its path, because a desktop client starts in no virtual environment.
"""

import argparse
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from manifests import LAUNCHER, NAME, ROOT, TITLE, VARIABLES, Manifest, project, servers
from tracked import tracked

TOP = (LAUNCHER, f"{LAUNCHER}.lock", "LICENSE")
PYTHON = "AOTI_DEBUG_PYTHON"
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The first date of a zip archive: the same files make the same bytes."""


def manifest(facts: Mapping[str, Any]) -> Manifest:
    """MCPB's manifest 0.4. An empty variable counts as not set."""
    entry = {**servers("${__dirname}")["mcpServers"][NAME], "env": {PYTHON: "${user_config.python}"}}
    question = {"type": "file", "title": "Python", "description": VARIABLES[PYTHON], "default": ""}
    return {
        "manifest_version": "0.4",
        **{key: facts[key] for key in ("name", "version", "description", "license", "keywords")},
        "display_name": TITLE,
        "author": {"name": facts["authors"][0]["name"]},
        "server": {"type": "uv", "entry_point": LAUNCHER, "mcp_config": entry},
        "tools_generated": True,
        "prompts_generated": True,
        "compatibility": {"platforms": ["linux"], "runtimes": {"python": facts["requires-python"]}},
        "user_config": {"python": {**question, "required": False}},
    }


def files() -> Iterator[str]:
    """The files of the bundle, sorted, relative to the root: the package, the launcher, the guides."""
    for name in tracked():
        guide = "/" not in name and PurePosixPath(name).suffix == ".md"
        if guide or name in TOP or name.startswith(("mcp_server/", "guides/")):
            yield name


def pack(target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        _add(bundle, "manifest.json", json.dumps(manifest(project()), indent=2).encode())
        for name in files():
            _add(bundle, name, (ROOT / name).read_bytes())


def _add(bundle: zipfile.ZipFile, name: str, data: bytes) -> None:
    bundle.writestr(zipfile.ZipInfo(name, EARLIEST), data, zipfile.ZIP_DEFLATED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", nargs="?", type=Path, default=ROOT / "dist" / f"{NAME}.mcpb")
    target = parser.parse_args().target
    target.parent.mkdir(parents=True, exist_ok=True)
    pack(target)
    print(target)


if __name__ == "__main__":
    main()
