"""The pinned list of default tools: `python -m tests.server.snapshot` writes it again after a change."""

import json
import tempfile
from pathlib import Path
from typing import Any

import anyio

from mcp_server.jobs.store import Store
from mcp_server.server.app import make_server

GOLD = Path(__file__).with_name("tools.json")


def tools(chosen: str = "all") -> list[dict[str, Any]]:
    """The answer to `tools/list`."""
    with tempfile.TemporaryDirectory() as state:
        server = make_server(Store(Path(state) / "state"), tools=chosen)
    listed = anyio.run(server.list_tools)
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]


def text_of(listed: list[dict[str, Any]]) -> str:
    """Write a line for each tool and each of its arguments, without descriptions."""
    rows = []
    for tool in map(without_texts, listed):
        arguments = tool["inputSchema"].pop("properties")
        rows += [tool, *({name: schema} for name, schema in arguments.items())]
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n"


def without_texts(part: Any) -> Any:
    """A schema or a part of one without descriptions. An argument may be named `description`."""
    if isinstance(part, list):
        return [without_texts(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key != "description" or not isinstance(value, str)}
    return {key: without_texts(value) for key, value in kept.items()}


if __name__ == "__main__":
    GOLD.write_text(text_of(tools("core")))
