"""What a `torch.export.save`d program says without being loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from mcp_server.package.members import ZipContainer, read_bytes
from mcp_server.package.problems import PackageError

# models/<name>.json from torch 2.8 on; a tensor's device is {"type": "cuda", "index": 0}.
_GRAPH = re.compile(r"(?:^|/)models/[^/]+\.json$")
_DEVICE = re.compile(rb'"device":\s*\{\s*"type":\s*"(\w+)"')


def exported_device(path: Path) -> Literal["cpu", "cuda"] | None:
    """The device that the program's tensors are on; cuda for a mixed one, None when it cannot be told."""
    try:
        archive = ZipContainer(path)
        graphs = [member.name for member in archive.members if _GRAPH.search(member.name)]
        types = {found for name in graphs for found in _DEVICE.findall(read_bytes(archive, name))}
    except PackageError:
        return None
    if b"cuda" in types:
        return "cuda"
    return "cpu" if types == {b"cpu"} else None
