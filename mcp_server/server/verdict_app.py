"""The verdict as an MCP App: a page that a client with that extension shows beside the text.

SEP-1865, `io.modelcontextprotocol/ui`. Clients without it ignore the mark on the tools and have the text.
"""

from __future__ import annotations

from pathlib import Path

from mcp.server.apps import Apps, ResourceCsp

URI = "ui://aoti-debug/verdict"
TOOLS = frozenset({"diagnose", "wait_job"})  # the tools whose result is a verdict
_PAGE = Path(__file__).with_suffix(".html")
_STYLE = _PAGE.parent.parent / "report" / "page.css"  # the folder is not imported: it would delay the start


def verdict_app() -> Apps:
    """The extension with its page. The page loads nothing and talks to its host alone."""
    apps = Apps()
    apps.add_html_resource(
        URI,
        page(),
        name="verdict",
        title="Verdict of aoti-debug",
        description="What a diagnosis found: root cause, crash site, fix and evidence.",
        csp=ResourceCsp(connect_domains=[], resource_domains=[]),
    )
    return apps


def page() -> str:
    """The page with the style sheet of the report in it."""
    html = _PAGE.read_text(encoding="utf-8")
    return html.replace("/* page.css */", _STYLE.read_text(encoding="utf-8"))
