"""The pinned list of tools by default: `python -m tests.server.snapshot` writes it anew after a change."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import anyio

from mcp_server.jobs.store import Store
from mcp_server.server.app import make_server

GOLD = Path(__file__).with_name("tools.json")


def tools(chosen: str = "all") -> list[dict[str, Any]]:
    """What `tools/list` answers."""
    with tempfile.TemporaryDirectory() as state:
        server = make_server(Store(Path(state) / "state"), tools=chosen)
    listed = anyio.run(server.list_tools)
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]


def text_of(listed: list[dict[str, Any]]) -> str:
    return json.dumps(listed, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    GOLD.write_text(text_of(tools("core")))
