"""The verdict as an MCP App: offered to clients, and drawn by the page as the host sends it."""

from __future__ import annotations

import html
import json
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp_types import TextResourceContents

from mcp_server.jobs.store import Store
from mcp_server.server.app import make_server, verdict_page
from mcp_server.server.tools import VERDICT_TOOLS, VERDICT_URI
from tests.report.samples import rewritten
from tests.report.test_browser import CHROMIUM, browsed

HOST = """<!doctype html><title>host</title><iframe srcdoc="{page}"></iframe><pre id="seen"></pre><script>
const frame = document.querySelector("iframe"), said = [];
addEventListener("message", (event) => {{
  said.push(event.data.method);
  const send = (message) => frame.contentWindow.postMessage({{jsonrpc: "2.0", ...message}}, "*");
  if (event.data.method === "ui/initialize") send({{id: event.data.id, result: {{}}}});
  if (event.data.method === "ui/notifications/initialized")
    send({{method: "ui/notifications/tool-result", params: {{structuredContent: {verdict}}}}});
  if (event.data.method === "ui/notifications/size-changed")
    document.querySelector("#seen").textContent =
      said.join(" ") + " | " + frame.contentDocument.querySelector("main").innerText
      + " | scripts " + frame.contentDocument.querySelectorAll("main script").length;
}});
</script>"""


def test_the_page_is_offered_with_the_tools_that_give_verdicts(tmp_path: Path) -> None:
    """The tools name the page, and the resource has it under the type of the extension."""

    async def talk() -> None:
        async with Client(make_server(Store(tmp_path / "jobs"))) as client:
            tools = (await client.list_tools()).tools
            marked = {
                tool.name for tool in tools if (tool.meta or {}).get("ui") == {"resourceUri": VERDICT_URI}
            }
            assert marked == VERDICT_TOOLS
            content = (await client.read_resource(VERDICT_URI)).contents[0]
            assert isinstance(content, TextResourceContents)
            assert content.mime_type == "text/html;profile=mcp-app"
            assert content.text == verdict_page()

    anyio.run(talk)


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """One file: no address but that of its own host is in it, and the style sheet is filled in."""
    text = verdict_page()
    assert "http" not in text.replace("http-equiv", "")
    assert "src=" not in text
    assert "--page:" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_shows_what_the_host_sends(tmp_path: Path) -> None:
    """Cause, fix and evidence are drawn; markup in the texts of a workload stays text."""
    hostile = "<script>alert(1)</script>"
    verdict = rewritten(lambda text: f"{text} {hostile}").verdict.model_dump(mode="json")
    host = HOST.format(page=html.escape(verdict_page()), verdict=json.dumps(verdict).replace("</", "<\\/"))
    dom = html.unescape(browsed(tmp_path, host, "--virtual-time-budget=5000", "--dump-dom"))
    seen = dom[dom.index('<pre id="seen">') :]
    assert "ui/initialize ui/notifications/initialized ui/notifications/size-changed" in seen
    assert verdict["summary"] in seen
    assert "ROOT CAUSE" in seen
    assert "scripts 0" in seen
