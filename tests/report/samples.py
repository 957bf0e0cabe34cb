"""Verdicts to report, and a reader of the pages that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from mcp_server.diagnosis.kept_files import Subject
from mcp_server.model import Verdict
from mcp_server.report.bundle import Source
from tests.render.samples import VERDICT

VOID = frozenset({"meta", "br", "img", "input", "link", "hr"})
SAID = {"format_version", "outcome", "category", "confidence", "eager", "kind", "uri", "path", "tool"}


class Page(HTMLParser):
    """Elements in order, texts, and whatever is wrong with the nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"{name} is never closed" for name in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing, line {self.getpos()[0]}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def rewritten(write: Callable[[str], str]) -> Source:
    """A full report, every text of which was put through `write`."""
    environment = {name: write(name) for name in ("torch", "GPU")}
    return Source(
        Verdict.model_validate(_written(VERDICT.model_dump(mode="json"), write)),
        Subject(environment=environment),
        log=write("log"),
    )


def _written(value: Any, write: Callable[[str], str], name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _written(item, write, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_written(item, write, name) for item in value]
    return write(value) if isinstance(value, str) and name not in SAID else value
