"""Digests of files and directories: what a cached rebuild is keyed by."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mcp_server.package.members import DirectoryContainer

CHUNK = 1 << 20


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_package(path: Path) -> str:
    """SHA-256 of a package: of the file, or of the names and contents of a directory."""
    if path.is_file() and path.suffix != ".so":
        return digest_file(path)
    root = path if path.is_dir() else path.parent
    members = DirectoryContainer(root).members
    return digest_values({m.name: digest_file(root / m.name) for m in members})


def digest_values(values: object) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
